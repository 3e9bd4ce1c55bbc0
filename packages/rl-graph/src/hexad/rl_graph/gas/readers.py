"""Data sets from files: OGBench's `.npz`, compact or with `next_observations`, and Minari's HDF5.

No pickle is read, and nothing is downloaded.
"""

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.files import atomic_path
from hexad.core.validation import check_file, check_path
from hexad.rl_graph.gas.trajectories import Trajectories

if TYPE_CHECKING:
    import h5py


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

    Raises:
        InputError: the file is missing, damaged or lacks an array; successors that contradict the next row;
            or as `Trajectories`.
    """
    path = check_file(path, "data")
    try:
        with np.load(path, allow_pickle=False) as file:
            known = set(file.files)
            missing = {"observations", "actions", "terminals"} - known
            if missing:
                raise InputError(
                    f"data {path} lacks {', '.join(sorted(missing))}; it holds {', '.join(sorted(known))}"
                )
            arrays = {name: file[name] for name in ("observations", "actions", "terminals")}
            successors = file["next_observations"] if "next_observations" in known else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"data {path} cannot be read as .npz ({error})") from None
    if successors is not None:
        arrays = _with_last_states(arrays, successors, str(path))
    return Trajectories(**arrays, source=str(path))


def _with_last_states(arrays: dict[str, Any], successors: np.ndarray, where: str) -> dict[str, Any]:
    """Transitions as states: the last successor of each trajectory becomes a row of its own."""
    observations, terminals = arrays["observations"], np.asarray(arrays["terminals"]).ravel()
    if observations.shape != successors.shape or len(terminals) != len(observations):
        raise InputError(
            f"{where} has observations {observations.shape}, next_observations {successors.shape} and "
            f"{len(terminals)} terminals; they must have one shape"
        )
    ends = np.flatnonzero(terminals)
    if len(ends) == 0 or ends[-1] != len(terminals) - 1:
        raise InputError(
            f"terminals of {where} do not mark the last transition; mark the last one of every trajectory"
        )
    inner = np.flatnonzero(terminals[:-1] == 0)
    broken = ~np.isclose(successors[inner], observations[inner + 1], equal_nan=True)
    broken = broken.reshape(len(inner), -1).any(axis=1)
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
    if len(states) != len(actions) + 1 or len(stopped) != len(actions) or len(actions) == 0:
        raise InputError(
            f"{where} has {len(states)} observations, {len(actions)} actions and {len(stopped)} flags; there "
            "must be one more observation than actions, and a flag an action"
        )
    if stopped[:-1].any() or not stopped[-1]:
        raise InputError(f"{where} must be terminated or truncated at its last step, and only there")
    return states, actions
