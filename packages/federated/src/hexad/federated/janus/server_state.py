"""What a server keeps on disk, so that a restart neither forgets a closed round nor loses a message.

    FOLDER/state.json                 the round, how far it is, who takes part, and the rounds before
    FOLDER/round-00000003/a.message   what clients sent, sealed as it came
    FOLDER/round-00000003/*.list      both servers' lists
    FOLDER/round-00000003/sums.bin    the round's sums, kept until the round after the next one begins

Each file is written whole or not at all, and its owner alone may read it. A mark outside of the folder counts
how often the state was written: a folder that is behind its mark was set back, and is refused.
"""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hexad.core.errors import InputError
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.envelopes import Header
from hexad.federated.janus.private_files import lock_folder, private_folder, write_private

Phase = Literal["idle", "open", "listed", "closed", "aggregated", "aborted"]


@dataclass
class Summed:
    """The agreement of a round that was summed."""

    round: int
    names: tuple[str, ...]
    model: str
    training: str
    digest: str

    @classmethod
    def of(cls, state: "State") -> "Summed":
        """The current round's."""
        return cls(state.round, state.names, state.model, state.training, state.digest)

    def header(self, state: "State", sender: str, recipient: str) -> Header:
        """What stands before the round's sums to a client."""
        return Header(
            "sum",
            state.session,
            state.config,
            self.round,
            sender,
            recipient,
            self.model,
            self.training,
            state.epoch,
            self.digest,
            len(self.names),
            recipient in self.names,
        )


@dataclass
class State:
    """How far a server is.

    Attributes:
        role: 0 or 1.
        session, config: whose rounds these are.
        round: number of the current round, 0 before the first.
        phase: open (takes messages), listed (its list is signed), closed (the participants are fixed),
            aggregated, or aborted.
        names, model, training, digest: the agreement of a closed round.
        history: for each earlier round its phase and the digest of its agreement.
        epoch: drawn when the folder is made.
        saves: how often the state was written.
        summed: the last round before the current one that has sums.
    """

    role: int
    session: str
    config: str
    round: int = 0
    phase: Phase = "idle"
    names: tuple[str, ...] = ()
    model: str = ""
    training: str = ""
    digest: str = ""
    history: dict[str, list[str]] | None = None
    epoch: str = ""
    saves: int = 0
    summed: Summed | None = None

    def __post_init__(self) -> None:
        self.names = tuple(self.names)
        if isinstance(self.summed, dict):
            self.summed = Summed(**self.summed)
            self.summed.names = tuple(self.summed.names)


class Store:
    """The folder of one server; one process at a time has it.

    Raises:
        InputError: it is in use, cannot be written, belongs to another server or session, or is older than
            its mark says.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        role: int,
        config: JanusConfig,
        mark: str | os.PathLike[str] | None = None,
    ) -> None:
        self.folder, self._lock = lock_folder(folder, "folder of the server")
        self._mark = None if mark is None else Path(mark)
        try:
            self.state = self._load(role, config)
            self._check_mark()
            if not self.state.saves:
                self.save()
        except BaseException:
            self.release()
            raise

    def _load(self, role: int, config: JanusConfig) -> State:
        path = self.folder / "state.json"
        if not path.exists():
            return State(role, config.session, config.digest, history={}, epoch=secrets.token_hex(16))
        try:
            state = State(**json.loads(path.read_text()))
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path} is damaged; name a new folder and a new session") from None
        if (state.role, state.session, state.config) != (role, config.session, config.digest):
            raise InputError(
                f"{self.folder} belongs to S_{state.role} of session {state.session!r}, or to "
                "other parameters; name another folder"
            )
        return state

    def _check_mark(self) -> None:
        if self._mark is None:
            return
        private_folder(self._mark.parent, "folder of the server's mark")
        if not self._mark.exists():
            return
        try:
            marked = json.loads(self._mark.read_text())
            same = marked["epoch"] == self.state.epoch and marked["saves"] <= self.state.saves
        except (ValueError, TypeError, KeyError, RecursionError):
            same = False
        if not same:
            raise InputError(
                f"{self.folder} is not the folder that this server left, or an older copy, by {self._mark}; "
                "a round could be summed twice: name a new session"
            )

    def _write_mark(self) -> None:
        if self._mark is not None:
            content = {"epoch": self.state.epoch, "saves": self.state.saves}
            write_private(self._mark, json.dumps(content).encode())

    def release(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def save(self) -> None:
        """Write the state, then the mark: a crash between them leaves the folder ahead, which is well."""
        self.state.saves += 1
        write_private(self.folder / "state.json", json.dumps(asdict(self.state), indent=2).encode())
        self._write_mark()

    def begin(self, round_number: int) -> None:
        """Start a round: what others left is deleted, but outcomes, the last list and the last sums."""
        state, last = self.state, self.state.round
        if state.round:
            state.history = {**(state.history or {}), str(state.round): [state.phase, state.digest]}
        if state.phase == "aggregated":
            state.summed = Summed.of(state)
        state.round, state.phase, state.names = round_number, "open", ()
        state.model = state.training = state.digest = ""
        self.save()
        kept = {self._folder_of(last): {"own.list"}}
        if state.summed is not None:
            kept.setdefault(self._folder_of(state.summed.round), set()).add("sums.bin")
        for old in self.folder.glob("round-*"):
            if old not in kept:
                shutil.rmtree(old, ignore_errors=True)
        for folder, names in kept.items():
            for file in folder.glob("*"):
                if file.name not in names:
                    file.unlink()
        self.round_folder.mkdir(mode=0o700, exist_ok=True)

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
        self.round_folder.mkdir(mode=0o700, exist_ok=True)
        write_private(self.round_folder / name, content)

    def read(self, name: str, round_number: int | None = None) -> bytes:
        """Read a file of the round, or of the one named.

        Raises:
            InputError: it is missing.
        """
        path = (self.round_folder if round_number is None else self._folder_of(round_number)) / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); begin a new round") from None

    def names(self) -> list[str]:
        """The clients whose messages the round has, sorted."""
        return sorted(path.name.removesuffix(".message") for path in self.round_folder.glob("*.message"))

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """The clients' messages of the round, one at a time."""
        for name in self.names():
            yield name, self.read(f"{name}.message")
