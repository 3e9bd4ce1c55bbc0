"""A run's folder: which settings may go on in it, and what in it belongs to an embedding that is gone."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hexad.core.errors import InputError
from hexad.core.files import write_json
from hexad.rl_graph.gas.graph import StitchGraph
from hexad.rl_graph.gas.policy import PolicyConfig, SkillPolicy
from hexad.rl_graph.gas.saving import FORMAT, load_graph, load_policy, load_temporal
from hexad.rl_graph.gas.temporal import TemporalConfig

FREE = ("steps", "checkpoint_every", "accelerator")
"""Settings of a training that may change from one call to the next."""


def policy_checkpoints(home: Path) -> Path:
    """Where the policy's checkpoints lie, beside the settings they were begun with."""
    return home / "checkpoints" / "policy"


def describe_policy(config: PolicyConfig, horizon: float, encoder: str) -> dict[str, Any]:
    """What a policy's checkpoints depend on, as JSON values."""
    settings = asdict(config)
    training = {name: value for name, value in settings.pop("fit").items() if name not in FREE}
    return json.loads(json.dumps(settings | training | {"horizon": float(horizon), "embedding": encoder}))


def note_policy(home: Path, described: dict[str, Any]) -> None:
    """Keep what the policy's checkpoints depend on."""
    policy_checkpoints(home).mkdir(parents=True, exist_ok=True)
    write_json(policy_checkpoints(home) / "settings.json", described)


def _noted(home: Path) -> dict[str, Any]:
    """What `note_policy` kept; empty where there is nothing whole."""
    try:
        return dict(json.loads((policy_checkpoints(home) / "settings.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _part(path: Path, load: Callable[[Path], StitchGraph | SkillPolicy]) -> StitchGraph | SkillPolicy | None:
    """A saved part; None where there is none that is whole, and which will be made anew."""
    try:
        return load(path)
    except InputError:
        return None


def _same_embedding(a: TemporalConfig, b: TemporalConfig) -> bool:
    """Whether two configurations train to the same embedding on the same data."""
    one, other = asdict(a), asdict(b)
    for described in (one, other):
        for name in ("checkpoint_every", "accelerator"):
            del described["fit"][name]
    return one == other


def check_run(
    home: Path,
    data: str,
    temporal: TemporalConfig,
    policy: PolicyConfig,
    horizon: float,
    stages: Iterable[str],
) -> None:
    """Refuse what cannot go on in the folder, before anything is written.

    Args:
        home: the folder, which need not exist.
        data: digest of the data.
        temporal: settings of the embedding; if they are other ones the later stages begin anew anyway.
        policy: settings of the policy.
        horizon: H.
        stages: those that are to be fitted.

    Raises:
        InputError: other data, another horizon than that of a stage that stays, other settings of the policy.
    """
    saved = home / "temporal.safetensors"
    if not saved.is_file():
        return
    old = load_temporal(saved)
    if old.data != data:
        raise InputError(
            f"{home} holds a run of other data ({old.data or 'unknown'}, not {data}); name another folder"
        )
    if "tdr" in stages and not _same_embedding(old.config, temporal):
        return
    for name, load, matters in (
        ("graph.npz", load_graph, "policy" in stages and "graph" not in stages),
        ("policy.safetensors", load_policy, "policy" in stages or "graph" in stages),
    ):
        part = _part(home / name, load) if matters else None
        if part is not None and part.encoder == old.digest and part.horizon != horizon:
            raise InputError(
                f"{home / name} was made with horizon {part.horizon:g}, not {horizon:g}; graph and policy "
                "need the same: name another folder, or give that horizon"
            )
    noted = _noted(home)
    if "policy" not in stages or noted.get("embedding") != old.digest:
        return
    wanted = describe_policy(policy, horizon, old.digest)
    changed = [f"{key}: {noted[key]} -> {value}" for key, value in wanted.items() if noted.get(key) != value]
    if changed:
        raise InputError(
            f"{policy_checkpoints(home)} belongs to a run with other settings ({'; '.join(changed)}); name "
            "another folder"
        )
    done = max(
        (int(path.stem[5:]) for path in policy_checkpoints(home).glob("step-*.safetensors")), default=0
    )
    if done > policy.fit.steps:
        raise InputError(
            f"the policy in {home} is {done} steps old, more than the {policy.fit.steps} asked for; ask for "
            "as many, or name another folder"
        )


def drop_stale(home: Path, digest: str) -> list[str]:
    """Remove graph, policy and the policy's checkpoints where they belong to another embedding.

    Args:
        home: the folder.
        digest: of the embedding that is about to be there.

    Returns:
        what was removed.
    """
    dropped = []
    for name, load in (("graph.npz", load_graph), ("policy.safetensors", load_policy)):
        path = home / name
        if path.is_file() and ((part := _part(path, load)) is None or part.encoder != digest):
            path.unlink()
            dropped.append(name)
    noted = _noted(home)
    if noted and noted.get("embedding") != digest:
        shutil.rmtree(policy_checkpoints(home))
        dropped.append("the policy's checkpoints")
    if dropped:
        (home / "agent.json").unlink(missing_ok=True)
    return dropped


def read_config(path: Path) -> dict[str, Any]:
    """What `agent.json` says, of this version's format, else `InputError`."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        wanted = ("format", "horizon", "te_threshold", "latch", "embedding")
        found = {name: described[name] for name in wanted}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of gas ({error})") from None
    if found["format"] != FORMAT:
        raise InputError(f"{path} has format {found['format']!r}; this version reads {FORMAT}")
    return found


def check_encoder(what: str | Path, encoder: str, digest: str) -> None:
    """Refuse a part of another embedding than that of this digest."""
    if encoder != digest:
        raise InputError(
            f"{what} was made with another embedding ({encoder or 'unknown'}) than the one there is "
            f"({digest}); fit that stage again"
        )


def check_parts(
    home: Path, digest: str, graph: StitchGraph, policy: SkillPolicy, described: Mapping[str, Any]
) -> None:
    """Refuse parts of a folder that do not belong together.

    Args:
        home: the folder, for messages.
        digest: of the embedding.
        graph: what `graph.npz` holds.
        policy: what `policy.safetensors` holds.
        described: what `agent.json` says.

    Raises:
        InputError: another embedding, horizon or te_threshold.
    """
    for name, encoder, horizon in (
        ("graph.npz", graph.encoder, graph.horizon),
        ("policy.safetensors", policy.encoder, policy.horizon),
        ("agent.json", described["embedding"], described["horizon"]),
    ):
        check_encoder(home / name, encoder, digest)
        if horizon != graph.horizon:
            raise InputError(
                f"{home / name} was made with horizon {horizon}, graph.npz with {graph.horizon:g}; fit both "
                "with the same"
            )
    if described["te_threshold"] != graph.te_threshold:
        raise InputError(
            f"{home / 'agent.json'} has te_threshold {described['te_threshold']}, graph.npz "
            f"{graph.te_threshold:g}; fit the stage graph again"
        )
