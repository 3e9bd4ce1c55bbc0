"""Data sets from files: OGBench's `.npz`, compact or with `next_observations`, and Minari's HDF5.

No pickle is read, and nothing is downloaded.
"""

import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.files import atomic_path
from hexad.core.validation import check_file, check_path
from hexad.rl_graph.gas.trajectories import Trajectories, is_real

if TYPE_CHECKING:
    import h5py


DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What a damaged `.npz` raises; RuntimeError is for encrypted members and unknown compressions."""
LARGE = 5000
"""States from which on a single trajectory is worth a question."""


def read_trajectories(path: str | Path, *, observation_key: str | None = None) -> Trajectories:
    """Read a data set by the suffix of its name.

    Args:
        path: an OGBench `.npz`, a Minari `.hdf5` or `.h5`, or the folder of a Minari data set.
        observation_key: which entry of dictionary observations is the state; Minari files only.

    Raises:
        InputError: another kind of file, or as the reader of this kind.
        MissingExtraError: HDF5 without h5py.
    """
    path = check_path(path, "data")
    if path.suffix.lower() == ".npz":
        if observation_key is not None:
            raise InputError(f"observation_key is for dictionary observations of HDF5 files; {path} has none")
        return load_ogbench_npz(path)
    if path.is_dir() or path.suffix.lower() in (".hdf5", ".h5"):
        return from_minari(path, observation_key=observation_key)
    check_file(path, "data")
    raise InputError(f"data {path} is of no known kind; give an OGBench .npz or a Minari .hdf5")


def load_ogbench_npz(path: str | Path) -> Trajectories:
    """Read OGBench's `.npz`: `observations`, `actions`, `terminals`, and perhaps `next_observations`.

    Without `next_observations` (compact, as OGBench's own files) the rows of a trajectory are all its
    states. With them the rows are transitions: each trajectory gets its last successor as a further state.
    A trajectory ends where `terminals` or, if there are any, `timeouts` are set. With `valids`, as OGBench's
    compact form has it in memory, it ends where these are 0.

    Raises:
        InputError: the file is missing, damaged or lacks an array; successors that contradict the next row;
            or as `Trajectories`.
    """
    path = check_file(path, "data")
    if not zipfile.is_zipfile(path):
        raise InputError(f"data {path} cannot be read as .npz (it is no zip archive); write it with np.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            known = set(file.files)
            missing = {"observations", "actions", "terminals"} - known
            if missing:
                raise InputError(
                    f"data {path} lacks {', '.join(sorted(missing))}; it holds {', '.join(sorted(known))}"
                )
            arrays = {name: file[name] for name in ("observations", "actions", "terminals")}
            successors, timeouts, valids = (
                file[name] if name in known else None for name in ("next_observations", "timeouts", "valids")
            )
    except DAMAGED as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"data {path} cannot be read as .npz ({error})") from None
    if valids is not None and successors is None:
        arrays["terminals"] = 1 - _flags(valids, "valids", len(valids), path)
    elif timeouts is not None:
        size = len(arrays["observations"]) if arrays["observations"].ndim else 0
        ends = [
            _flags(arrays["terminals"], "terminals", size, path),
            _flags(timeouts, "timeouts", size, path),
        ]
        arrays["terminals"] = np.maximum(*ends)
    if successors is not None:
        arrays = _with_last_states(arrays, successors, str(path))
    data = Trajectories(**arrays, source=str(path))
    if len(data.last_states) == 1 and len(data) >= LARGE:
        warnings.warn(
            f"all {len(data):,} states of {path} are one trajectory; if it holds several, mark the last "
            "state of each in terminals",
            stacklevel=2,
        )
    return data


def _flags(flags: np.ndarray, name: str, size: int, where: str | Path) -> np.ndarray:
    """One 0 or 1 a row as integers, else `InputError`."""
    flags = np.asarray(flags)
    if flags.size != size or not np.isin(flags, (0, 1)).all():
        raise InputError(f"{name} of {where} must be {size} values of 0 and 1; they have shape {flags.shape}")
    return flags.reshape(size).astype(np.int8)


def _with_last_states(arrays: dict[str, Any], successors: np.ndarray, where: str) -> dict[str, Any]:
    """Transitions as states: the last successor of each trajectory becomes a row of its own."""
    observations, terminals = arrays["observations"], np.asarray(arrays["terminals"]).ravel()
    if observations.ndim == 0 or not is_real(observations) or not is_real(successors):
        raise InputError(f"observations and next_observations of {where} must be real numbers")
    if observations.shape != successors.shape or len(terminals) != len(observations):
        raise InputError(
            f"{where} has observations {observations.shape}, next_observations {successors.shape} and "
            f"{len(terminals)} terminals; they must have one shape"
        )
    terminals = _flags(terminals, "terminals", len(terminals), where)
    ends = np.flatnonzero(terminals)
    if len(ends) == 0 or ends[-1] != len(terminals) - 1:
        raise InputError(
            f"terminals of {where} do not mark the last transition; mark the last one of every trajectory"
        )
    inner = np.flatnonzero(terminals[:-1] == 0)
    # What a successor may differ by is told by how its number varies, not by how large it is.
    floats = [np.result_type(array.dtype, np.float16) for array in (observations, successors)]
    rounding = max(np.finfo(kind).eps for kind in floats)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = observations[inner + 1].astype(np.float64)
        slack = (
            1e-8 + 1e-5 * np.nan_to_num(observations.std(axis=0, dtype=np.float64)) + rounding * np.abs(exact)
        )
        near = np.abs(successors[inner] - exact) <= slack
    broken = ~(near | (np.isnan(exact) & np.isnan(successors[inner])))
    broken = broken.any(axis=tuple(range(1, broken.ndim)))
    if broken.any():
        place = int(inner[broken.argmax()])
        raise InputError(
            f"next_observations {place} of {where} is not observation {place + 1}, and terminals mark no end "
            "there; mark it, or sort the transitions"
        )
    after = ends + 1
    actions = np.asarray(arrays["actions"])
    flags = np.zeros(len(terminals), bool)
    return {
        "observations": np.insert(observations, after, successors[ends], axis=0),
        "actions": np.insert(actions, after, np.zeros((len(ends), *actions.shape[1:])), axis=0),
        "terminals": np.insert(flags, after, True),
    }


def write_ogbench_npz(path: str | Path, data: Trajectories) -> None:
    """Write the data set as OGBench does, compact, atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file, observations=data.observations, actions=data.actions, terminals=data.terminals
        )


def _minari_file(source: str | Path) -> Path:
    """The HDF5 file of a path, of a data set's folder, or of the id of a data set on this machine."""
    path = check_path(source, "data")
    if path.is_file():
        return path
    roots = [path]
    if not path.exists():
        home = os.environ.get("MINARI_DATASETS_PATH") or Path("~/.minari/datasets").expanduser()
        roots.append(Path(home) / path)
    for root in roots:
        for place in (root / "data" / "main_data.hdf5", root / "main_data.hdf5"):
            if place.is_file():
                return place
    raise InputError(
        f"data {path} is neither an HDF5 file nor a Minari data set on this machine; nothing is downloaded"
    )


def from_minari(source: str | Path, *, observation_key: str | None = None) -> Trajectories:
    """Read a Minari data set: groups `episode_N` with observations, actions, terminations, truncations.

    Args:
        source: the HDF5 file, the folder of the data set, or its id, which is looked for in
            `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`.
        observation_key: which entry of dictionary observations is the state, such as `"observation"`.

    Raises:
        MissingExtraError: h5py is not installed.
        InputError: no such data, a damaged file, an episode that is not whole, dictionary observations
            without a key; or as `Trajectories`.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            'HDF5 files need h5py, which is not installed; run: pip install "hexad-rl-graph[minari]"'
        ) from error
    path = _minari_file(source)
    try:
        with h5py.File(path, "r") as file:
            names = [name for name in file if name.startswith("episode_") and name[8:].isdigit()]
            names.sort(key=lambda name: int(name[8:]))
            if not names and {"observations", "actions", "terminals"} <= set(file):
                raise InputError(
                    f"data {path} is of D4RL's form, not Minari's; write its observations, actions, "
                    "terminals and timeouts to an .npz with np.savez"
                )
            if not names:
                raise InputError(f"data {path} holds no groups named episode_0, episode_1, ...")
            episodes = [_episode(file[name], f"{name} of {path}", observation_key) for name in names]
    except OSError as error:
        raise InputError(f"data {path} cannot be read as HDF5 ({error})") from None
    widths = {tuple(part.shape[1] for part in episode) for episode in episodes}
    if len(widths) > 1:
        raise InputError(f"episodes of {path} have different numbers of features: {sorted(widths)}")
    terminals = np.zeros(sum(len(states) for states, _ in episodes), bool)
    terminals[np.cumsum([len(states) for states, _ in episodes]) - 1] = True
    return Trajectories(
        np.concatenate([states for states, _ in episodes]),
        np.concatenate([np.concatenate([moves, np.zeros_like(moves[:1])]) for _, moves in episodes]),
        terminals,
        source=str(path),
    )


def _episode(group: "h5py.Group", where: str, key: str | None) -> tuple[np.ndarray, np.ndarray]:
    """States (T + 1, obs_dim) and actions (T, act_dim) of one episode."""
    missing = {"observations", "actions", "terminations", "truncations"} - set(group)
    if missing:
        raise InputError(f"{where} lacks {', '.join(sorted(missing))}")
    states: Any = group["observations"]
    if hasattr(states, "keys"):
        names = sorted(states)
        if key is None or key not in names:
            raise InputError(
                f"observations of {where} are a dictionary of {', '.join(names)}; name the one that is the "
                "state with observation_key (--observation-key)"
            )
        states = states[key]
    elif key is not None:
        raise InputError(f"observations of {where} are one array; leave observation_key out")
    actions: Any = group["actions"]
    if hasattr(actions, "keys") or hasattr(states, "keys"):
        raise InputError(f"{where} has nested dictionaries, which are not supported")
    states, actions = states[()], actions[()]
    stopped = np.asarray(group["terminations"][()], bool) | np.asarray(group["truncations"][()], bool)
    if states.ndim != 2 or actions.ndim != 2:
        raise InputError(
            f"{where} has observations of shape {states.shape} and actions of shape {actions.shape}; both "
            "must be (steps, features)"
        )
    if len(actions) == 0:
        raise InputError(f"{where} has no steps; leave it out")
    if len(states) != len(actions) + 1 or len(stopped) != len(actions):
        raise InputError(
            f"{where} has {len(states)} observations, {len(actions)} actions and {len(stopped)} flags; there "
            "must be one more observation than actions, and a flag an action"
        )
    if stopped[:-1].any() or not stopped[-1]:
        raise InputError(f"{where} must be terminated or truncated at its last step, and only there")
    return states, actions
