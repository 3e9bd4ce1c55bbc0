"""What a server keeps on disk, so that a restart neither forgets a closed round nor loses a message.

    FOLDER/state.json                 the round, how far it is, who takes part, and the rounds before
    FOLDER/round-00000003/a.message   what clients sent, sealed as it came
    FOLDER/round-00000003/*.list      both servers' lists
    FOLDER/round-00000003/sums.bin    the round's sums

Each file is written whole or not at all.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, writable_folder, write_json
from hexad.federated.janus.config import JanusConfig

Phase = Literal["idle", "open", "listed", "closed", "aggregated", "aborted"]


@dataclass
class State:
    """How far a server is.

    Attributes:
        role: 0 or 1.
        session, config: whose rounds these are.
        round: number of the current round, 0 before the first.
        phase: open (takes messages), listed (its list is signed), closed (the participants are fixed),
            aggregated, or aborted.
        names, model, digest: the agreement of a closed round.
        history: for each earlier round its phase and the digest of its agreement.
    """

    role: int
    session: str
    config: str
    round: int = 0
    phase: Phase = "idle"
    names: tuple[str, ...] = ()
    model: str = ""
    digest: str = ""
    history: dict[str, list[str]] | None = None


class Store:
    """The folder of one server; one process at a time has it.

    Raises:
        InputError: it is in use, cannot be written, or belongs to another server or session.
    """

    def __init__(self, folder: str | os.PathLike[str], role: int, config: JanusConfig) -> None:
        self.folder = writable_folder(folder, "folder of the server")
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(
                f"{self.folder} is in use by another process; one server has one folder"
            ) from None
        self.state = State(role, config.session, config.digest, history={})
        path = self.folder / "state.json"
        if path.exists():
            try:
                self.state = State(**json.loads(path.read_text()))
                self.state.names = tuple(self.state.names)
            except (ValueError, TypeError):
                self.release()
                raise InputError(f"{path} is damaged; name a new folder and a new session") from None
            mine = (role, config.session, config.digest)
            if (self.state.role, self.state.session, self.state.config) != mine:
                self.release()
                raise InputError(
                    f"{self.folder} belongs to S_{self.state.role} of session {self.state.session!r}, or to "
                    "other parameters; name another folder"
                )

    def release(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def save(self) -> None:
        """Write the state."""
        write_json(self.folder / "state.json", asdict(self.state))

    def begin(self, round_number: int) -> None:
        """Start a round: what the one before left is deleted, but its outcome and its own list."""
        state, last = self.state, self.state.round
        if state.round:
            state.history = {**(state.history or {}), str(state.round): [state.phase, state.digest]}
        state.round, state.phase, state.names, state.model, state.digest = round_number, "open", (), "", ""
        self.save()
        for old in self.folder.glob("round-*"):
            if old != self._folder_of(last):
                shutil.rmtree(old, ignore_errors=True)
        for file in self._folder_of(last).glob("*"):
            if file.name != "own.list":
                file.unlink()
        self.round_folder.mkdir(exist_ok=True)

    @property
    def round_folder(self) -> Path:
        """Of the current round."""
        return self._folder_of(self.state.round)

    def _folder_of(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:08}"

    def past_list(self, round_number: int) -> bytes | None:
        """The list that this server wrote in the round or the one before it."""
        path = self._folder_of(round_number) / "own.list"
        return path.read_bytes() if path.is_file() else None

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the round."""
        self.round_folder.mkdir(exist_ok=True)
        with atomic_open(self.round_folder / name, "wb") as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Read a file of the round.

        Raises:
            InputError: it is missing.
        """
        try:
            return (self.round_folder / name).read_bytes()
        except OSError as error:
            raise InputError(
                f"{self.round_folder / name} cannot be read ({error.strerror}); begin a new round"
            ) from None

    def names(self) -> list[str]:
        """The clients whose messages the round has, sorted."""
        return sorted(path.name.removesuffix(".message") for path in self.round_folder.glob("*.message"))

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """The clients' messages of the round, one at a time."""
        for name in self.names():
            yield name, self.read(f"{name}.message")
