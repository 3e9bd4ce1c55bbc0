"""What a client remembers between rounds: its control variates, by the round they were made in."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hexad.core.errors import InputError
from hexad.federated.fedswa.tensor_files import read_arrays, write_arrays

Variate = dict[str, np.ndarray]


class VariateMemory:
    """The control variates of a client that a server may still ask for.

    More than one, because what the server did not count did not happen: a reply may have been late, or the
    server went back to a checkpoint. The server says which rounds of this client it and its checkpoints
    count; `remember` keeps the variates of those.

    Attributes:
        run: of which run of a server they are.
        versions: variates by the round they were made in, oldest first.
    """

    def __init__(self, run: str = "", versions: dict[int, Variate] | None = None) -> None:
        self.run = run
        self.versions = {made: versions[made] for made in sorted(versions)} if versions else {}

    def of(self, counted: int) -> Variate | None:
        """The variate of the round that the server counts as this client's last, or None."""
        return self.versions.get(counted)

    def remember(self, made: int, variate: Variate, counted: int, kept: Iterable[int] = ()) -> None:
        """Store what was made in round `made`, beside what the server may go back to.

        Args:
            made: the round.
            variate: c_i+.
            counted: the client's last round that the server counts.
            kept: the same as the server's checkpoints have it.

        Raises:
            InputError: the round is no later than the one that the server counted.
        """
        if made <= counted:
            raise InputError(f"round {made} comes after round {counted}; the server counts rounds wrongly")
        wanted = {counted, *kept}
        self.versions = {old: c for old, c in self.versions.items() if old in wanted}
        self.versions[made] = variate


def save_memory(path: Path, memory: VariateMemory) -> None:
    """Write a client's control variates."""
    arrays = {f"{made}.{name}": a for made, variate in memory.versions.items() for name, a in variate.items()}
    write_arrays(path, arrays, {"run": memory.run, "rounds": list(memory.versions)})


def load_memory(path: Path) -> VariateMemory:
    """A client's control variates; an empty memory where there is no file, or a damaged one."""
    read = read_arrays(path) if path.is_file() else None
    if read is None or not isinstance(read[1].get("rounds"), list):
        return VariateMemory()
    arrays, note = read
    versions: dict[int, Variate] = {int(made): {} for made in note["rounds"]}
    for name, array in arrays.items():
        made, _, own = name.partition(".")
        versions[int(made)][own] = array
    return VariateMemory(str(note.get("run", "")), versions)
