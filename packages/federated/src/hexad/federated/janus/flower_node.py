"""A Flower node as a party of Janus: its files, the model that it holds, and what it remembers.

What it holds lies in Flower's context, and in the folder that the node's configuration names, which outlives
a crash.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.federated.janus.client import JanusClient, model_digest
from hexad.federated.janus.client_memory import Memory
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.flower_api import Array, ArrayRecord, ConfigRecord, Context
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.models import flat_length
from hexad.federated.janus.private_files import private_folder, write_private
from hexad.federated.janus.session_file import SessionFile
from hexad.federated.janus.tags import model_tag

MODEL, HELD, MEMORY = "janus-model", "janus-held", "janus-memory"


@dataclass(frozen=True)
class Held:
    """A model, and how far it has come.

    Attributes:
        arrays: the model.
        round: the last one whose sum is in it, 0 of a first model.
        secret: of that sum: what clients share and servers do not know; see `tags`.
    """

    arrays: ArrayRecord
    round: int = 0
    secret: bytes = b""


def pack(held: Held) -> bytes:
    """A model as the bytes of an .npz file."""
    stream = io.BytesIO()
    named: dict[str, Any] = {
        f"{place:06} {name}": array.numpy() for place, (name, array) in enumerate(held.arrays.items())
    }
    named["round"], named["secret"] = np.array(held.round), np.frombuffer(held.secret, np.uint8)
    np.savez(stream, **named)
    return stream.getvalue()


def unpack(content: bytes) -> Held:
    """The model of `pack`.

    Raises:
        ProtocolError: it is none.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            number, secret = int(file["round"]), file["secret"].tobytes()
            names = sorted(set(file.files) - {"round", "secret"})
            arrays = ArrayRecord({name.split(" ", 1)[1]: Array(file[name]) for name in names})
    except (ValueError, TypeError, OSError, IndexError, KeyError) as error:
        raise ProtocolError("envelope", f"this is no packed model ({error}); it is refused") from None
    return Held(arrays, number, secret)


def setting(context: Context, name: str) -> str | None:
    """A path of the node's or the run's configuration, with the partition filled in."""
    value = context.node_config.get(name, context.run_config.get(name))
    if value is None:
        return None
    return str(value).replace("{partition}", str(context.node_config.get("partition-id", "")))


class Node:
    """What a node is by its files: keys and session, and what it holds.

    Args:
        context: of the node.

    Raises:
        InputError: a file is not named, missing or wrong; the keys are of nobody in the session.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.session = SessionFile.load(self.path("janus-session"))
        self.keys_file = self.path("janus-keys")
        self.keys = Keys.load(self.keys_file)
        self.config = self.session.config
        if not self.is_s1:
            self.session.check_client(self.keys)

    def path(self, name: str) -> str:
        """A file that the configuration must name."""
        value = setting(self.context, name)
        if value is None:
            raise InputError(
                f"the node's configuration has no {name!r}; name the file there, or in the run's"
            )
        return value

    @property
    def is_s1(self) -> bool:
        """Whether it is the second server."""
        return self.keys.public == self.session.servers.s1

    def _write(self, name: str, content: bytes) -> None:
        folder = setting(self.context, "janus-folder")
        if folder is not None:
            write_private(private_folder(folder, "janus-folder") / name, content)

    def _read(self, name: str) -> bytes | None:
        folder = setting(self.context, "janus-folder")
        file = None if folder is None else Path(folder) / name
        return file.read_bytes() if file is not None and file.is_file() else None

    @property
    def held(self) -> Held | None:
        """The model it holds, if any."""
        state = self.context.state
        if MODEL not in state.array_records and (content := self._read("model.npz")) is not None:
            self._hold(unpack(content))
        if MODEL not in state.array_records:
            return None
        values: dict[str, Any] = dict(state.config_records[HELD])
        return Held(state.array_records[MODEL], values["round"], values["secret"])

    def _hold(self, held: Held) -> None:
        self.context.state[MODEL] = held.arrays
        self.context.state[HELD] = ConfigRecord({"round": held.round, "secret": held.secret})

    def keep(self, held: Held) -> None:
        """Hold another model, also on disk where a folder is named.

        Raises:
            InputError: it has another length than the session's.
        """
        found, due = flat_length(held.arrays.to_numpy_ndarrays()), self.config.length
        if found != due:
            raise InputError(f"the model has {found} floating-point numbers, the session's length is {due}")
        self._write("model.npz", pack(held))
        self._hold(held)

    @property
    def tag(self) -> str:
        """The tag of its model, "" without one."""
        return "" if (held := self.held) is None else self.tag_of(held)

    def tag_of(self, held: Held) -> str:
        """The tag of a model in this session."""
        return model_tag(held.secret, self.config, model_digest(held.arrays.to_numpy_ndarrays()))

    @property
    def memory(self) -> Memory:
        """What it remembers of its rounds."""
        record = self.context.state.config_records.get(MEMORY)
        text = str(record["json"]) if record is not None else self._read("rounds.json")
        return Memory() if text is None else Memory.from_json(text, "rounds.json of janus-folder")

    def remember(self, client: JanusClient, **changes: str) -> None:
        """Remember where a client is."""
        memory = replace(self.memory, round=client.last_round, epochs=client.epochs, **changes)
        self._write("rounds.json", memory.to_json().encode())
        self.context.state[MEMORY] = ConfigRecord({"json": memory.to_json()})

    def client(self, order: Mapping[str, Any]) -> JanusClient:
        """The node as a client of the protocol.

        Args:
            order: names the servers' folders where the client does not know them yet. A false name cannot
                harm: the server then refuses the message.

        Raises:
            ProtocolError: check `"epoch"`: a server has lost or replaced its folder.
        """
        client = JanusClient(self.keys, self.session.servers, self.config)
        self.memory.give_to(client)
        told = str(order.get("epoch-s0", "")), str(order.get("epoch-s1", ""))
        for role, (known, said) in enumerate(zip(client.epochs, told, strict=True)):
            if "" not in (known, said) and known != said:
                raise ProtocolError(
                    "epoch",
                    f"S_{role} has lost or replaced its folder and may sum rounds twice; it is refused",
                )
        first, second = (known or said for known, said in zip(client.epochs, told, strict=True))
        client.epochs = first, second
        return client
