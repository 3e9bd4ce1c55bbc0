"""What a client remembers from round to round, so that it never masks twice for one, whatever interrupts it.

    FOLDER/rounds.json              the last round that it masked for, and what it knows of the servers
    FOLDER/round-3-to-s0.janus      its messages of that round, to be sent again as they are
    FOLDER/clients.secret           what it shares with the other clients: give it on together with the model

All of it is readable by its owner alone. The messages are sealed, so they tell even the client nothing.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.federated.janus.client import JanusClient, Protected, Result
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.private_files import lock_folder, write_private
from hexad.federated.janus.tags import SECRET_SIZE, model_tag


@dataclass(frozen=True)
class Memory:
    """How far a client is.

    Attributes:
        round: the last one that it masked an update for, 0 before the first.
        update: digest of what was masked there.
        training: tag of what it was told to do there.
        epochs: names of the servers' folders; see `JanusClient`.
    """

    round: int = 0
    update: str = ""
    training: str = ""
    epochs: tuple[str, str] = ("", "")

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> "Memory":
        """Read what `to_json` made.

        Raises:
            InputError: it is something else.
        """
        try:
            memory = cls(**json.loads(text))
            first, second = memory.epochs
            return replace(memory, round=int(memory.round), epochs=(str(first), str(second)))
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{where} is damaged; join a new session, or as a new client") from None

    def give_to(self, client: JanusClient) -> None:
        """Let a client go on where it was."""
        client.last_round, client.epochs = self.round, self.epochs


class ClientFolder:
    """The folder of one client in one session; one process at a time has it.

    Args:
        folder: made where it is missing.
        config: of the session.

    Raises:
        InputError: it is in use, damaged, or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], config: JanusConfig) -> None:
        self._folder, self._lock = lock_folder(folder, "folder of the client")
        self._config = config
        try:
            text = self._read("rounds.json")
            self.memory = Memory() if text is None else Memory.from_json(text, str(self._folder))
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()

    def _read(self, name: str) -> bytes | None:
        path = self._folder / name
        return path.read_bytes() if path.is_file() else None

    def _paths(self, round_number: int) -> list[Path]:
        return [self._folder / f"round-{round_number}-to-{server}.janus" for server in ("s0", "s1")]

    def masking(self, client: JanusClient) -> Callable[..., Protected]:
        """`client.protect`, once a round: for the same round again it gives the same messages.

        It raises `InputError` where another update was masked for the round.
        """

        def protect(
            update: Float[np.ndarray, " length"], weight: int, round_number: int, model: str = ""
        ) -> Protected:
            digest = hashlib.sha256(f"{weight} {model};".encode())
            digest.update(np.ascontiguousarray(update).data)
            if round_number != self.memory.round:
                sent = client.protect(update, weight, round_number, model)
                self._keep(sent, round_number, digest.hexdigest())
                return sent
            if digest.hexdigest() != self.memory.update:
                raise InputError(
                    f"another update, weight or model was masked for round {round_number}, and may be sent; "
                    "give the same again, or take the next round"
                )
            client.clipped = client.count_clipped(update)
            missing = [path.name for path in self._paths(round_number) if not path.is_file()]
            if missing:
                raise InputError(
                    f"{missing[0]} is gone from {self._folder}, and an update is not masked twice; take the "
                    "next round"
                )
            return Protected(*(path.read_bytes() for path in self._paths(round_number)))

        return protect

    def _keep(self, sent: Protected, round_number: int, digest: str) -> None:
        # First the messages, then the mark: a crash between them has sent nothing.
        for path, message in zip(self._paths(round_number), sent, strict=True):
            write_private(path, message)
        self._save(replace(self.memory, round=round_number, update=digest))
        for old in set(self._folder.glob("round-*.janus")) - set(self._paths(round_number)):
            old.unlink()

    def _save(self, memory: Memory) -> None:
        write_private(self._folder / "rounds.json", memory.to_json().encode())
        self.memory = memory

    def accept(self, client: JanusClient, result: Result, round_number: int) -> None:
        """Remember the servers, and what the clients of a verified sum share."""
        self._save(replace(self.memory, epochs=client.epochs))
        known = {**self._secrets(), round_number: result.secret}
        # That of the round before too: the same round may be verified again.
        text = json.dumps({number: known[number].hex() for number in sorted(known)[-2:]})
        write_private(self._folder / "clients.secret", text.encode())

    def _secrets(self) -> dict[int, bytes]:
        text = self._read("clients.secret")
        try:
            known = {int(key): bytes.fromhex(value) for key, value in json.loads(text or "{}").items()}
            if not all(len(secret) == SECRET_SIZE for secret in known.values()):
                raise ValueError
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InputError(
                f"{self._folder / 'clients.secret'} is damaged; get another client's with its model"
            ) from None
        return known

    def tag(self, digest: str, round_number: int) -> str:
        """The tag in a round of a model with that digest; "" of none."""
        earlier = {number: secret for number, secret in self._secrets().items() if number < round_number}
        return model_tag(earlier[max(earlier)] if earlier else b"", self._config, digest) if digest else ""
