"""Janus in a Flower client app: `mods=[janus_mod]` and `add_janus(app)`.

    app = ClientApp(mods=[janus_mod])
    add_janus(app)

    @app.train()
    def train(message, context):  # as for FedAvg: arrays in, arrays and num-examples out
        ...

The node's configuration names its files: `janus-session` (the session file), `janus-keys` (its private keys)
and, to outlive a crash, `janus-folder`. In a simulation, where nodes cannot be configured one by one, the
run's configuration names them, and `{partition}` in a path stands for the node's partition. The node whose
keys are those of s1 is the second server; all others are clients.

A client keeps the model and applies verified sums to it. It sends sealed messages and no metrics of training.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, writable_folder
from hexad.federated.janus.client import JanusClient, model_digest
from hexad.federated.janus.envelopes import Header, check_header, open_sealed, read_header, seal
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.flower_api import (
    Array,
    ArrayRecord,
    ClientApp,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from hexad.federated.janus.flower_server1 import answer_s1, vouched_keys
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.models import add_to, difference, flat_length
from hexad.federated.janus.session_file import SessionFile

RECORD = "janus"
MODEL = "janus-model"
CallNext = Callable[[Message, Context], Message]


def setting(context: Context, name: str) -> str | None:
    """A path of the node's or the run's configuration, with the partition filled in."""
    value = context.node_config.get(name, context.run_config.get(name))
    if value is None:
        return None
    return str(value).replace("{partition}", str(context.node_config.get("partition-id", "")))


def _path(context: Context, name: str) -> str:
    value = setting(context, name)
    if value is None:
        raise InputError(f"the node's configuration has no {name!r}; name the file there, or in the run's")
    return value


class Node:
    """What a node is by its files: keys and session, and the model that it holds.

    Args:
        context: of the node.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.session = SessionFile.load(_path(context, "janus-session"))
        self.keys = Keys.load(_path(context, "janus-keys"))

    @property
    def is_s1(self) -> bool:
        """Whether it is the second server."""
        return self.keys.public == self.session.servers.s1

    @property
    def _file(self) -> Path | None:
        folder = setting(self.context, "janus-folder")
        return None if folder is None else Path(folder) / "model.npz"

    @property
    def model(self) -> ArrayRecord | None:
        """The model it holds, if any."""
        state, file = self.context.state, self._file
        if MODEL not in state.array_records and file is not None and file.is_file():
            self.context.state[MODEL] = unpack(file.read_bytes())
        return state.array_records.get(MODEL)

    def keep(self, arrays: ArrayRecord) -> None:
        """Hold another model, also on disk where a folder is named.

        Raises:
            InputError: it has another length than the session's.
        """
        found, due = flat_length(arrays.to_numpy_ndarrays()), self.session.config.length
        if found != due:
            raise InputError(f"the model has {found} floating-point numbers, the session's length is {due}")
        if (file := self._file) is not None:
            writable_folder(file.parent, "janus-folder")
            with atomic_open(file, "wb") as stream:
                stream.write(pack(arrays))
        self.context.state[MODEL] = arrays

    @property
    def digest(self) -> str:
        """The digest of its model, "" without one."""
        return "" if self.model is None else model_digest(self.model.to_numpy_ndarrays())

    def client(self) -> JanusClient:
        """The node as a client of the protocol."""
        return JanusClient(self.keys, self.session.servers, self.session.config)


def pack(arrays: ArrayRecord) -> bytes:
    """A model as the bytes of an .npz file."""
    stream = io.BytesIO()
    named: dict[str, Any] = {
        f"{place:06} {name}": array.numpy() for place, (name, array) in enumerate(arrays.items())
    }
    np.savez(stream, **named)
    return stream.getvalue()


def unpack(content: bytes) -> ArrayRecord:
    """The model of `pack`.

    Raises:
        ProtocolError: it is none.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return ArrayRecord({name.split(" ", 1)[1]: Array(file[name]) for name in sorted(file.files)})
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise ProtocolError("envelope", f"this is no packed model ({error}); it is refused") from None


def janus_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Give the app the client's own model, and send what it trained masked and sealed.

    Args:
        message: "train" or "evaluate" of Janus; Janus's own actions and queries pass.
        context: of the node.
        call_next: the app.

    Raises:
        InputError: training or an evaluation that is not asked for by Janus, whose reply S_0 could read; the
            app's reply has no arrays or no `num-examples`; see also `JanusClient.protect`.
    """
    category = message.metadata.message_type
    kind, _, action = category.partition(".")
    if kind not in (MessageType.TRAIN, MessageType.EVALUATE) or action.startswith("janus_"):
        return call_next(message, context)
    if action or not message.has_content() or RECORD not in message.content.config_records:
        raise InputError(
            f"{category!r} was asked for without Janus, so S_0 could read the reply; it is refused"
        )
    node, order = Node(context), _order(message)
    del message.content[RECORD]
    # A first model comes from S_0 and is public; later ones never do.
    offered = message.content.array_records.get("arrays")
    if node.model is None and offered is not None:
        node.keep(offered)
    model = node.model
    if model is None:
        raise InputError(
            f"{node.keys.name} holds no model yet and was given none; a client must hand one over"
        )
    message.content["arrays"] = ArrayRecord(dict(model))
    reply = call_next(message, context)
    if not reply.has_content():
        return reply
    if category == MessageType.EVALUATE:
        if reply.content.array_records:
            raise InputError("the evaluate function returned arrays, which S_0 could read; return metrics")
        return reply
    arrays, examples = _trained(reply)
    update = difference(arrays.to_numpy_ndarrays(), model.to_numpy_ndarrays())
    sent = node.client().protect(update, examples, int(order["round"]), node.digest)
    content = {"name": node.keys.name, "to-s0": sent.to_s0, "to-s1": sent.to_s1}
    return Message(RecordDict({RECORD: ConfigRecord(content)}), reply_to=message)


def _trained(reply: Message) -> tuple[ArrayRecord, int]:
    arrays, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
    if len(arrays) != 1:
        raise InputError(
            f"the train function returned {len(arrays)} records of arrays; return one, as for FedAvg"
        )
    for record in metrics:
        if isinstance(record.get("num-examples"), (int, float)):
            return arrays[0], int(record["num-examples"])  # ty: ignore[invalid-argument-type]
    raise InputError("the train function returned no metric 'num-examples'; it is the client's weight")


def _order(message: Message) -> dict[str, Any]:
    """What the message asks, as plain values."""
    return dict(message.content.config_records[RECORD])


def _reply(message: Message, **values: Any) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def hello(message: Message, context: Context) -> Message:
    """Say who the node is and which model it holds (by its digest)."""
    node = Node(context)
    return _reply(message, name=node.keys.name, s1=node.is_s1, model=node.digest)


def finish(message: Message, context: Context) -> Message:
    """Verify the round's sum and apply it to the client's own model.

    Raises:
        ProtocolError: the servers do not prove it; the model stays as it is.
    """
    node, order = Node(context), _order(message)
    model = node.model
    if model is None:
        raise InputError(f"{node.keys.name} holds no model that a sum could be applied to")
    result = node.client().verify_and_unmask(
        order["from-s0"], order["from-s1"], int(order["round"]), node.digest
    )
    moved = add_to(model.to_numpy_ndarrays(), result.mean)
    node.keep(ArrayRecord({name: Array(array) for name, array in zip(model, moved, strict=True)}))
    # Neither the sum nor its weight: S_0 reads this.
    metrics = {"accepted": 1, "included": int(result.included)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def give(message: Message, context: Context) -> Message:
    """Seal the client's model to another client whom both servers vouch for."""
    node, order = Node(context), _order(message)
    config, number = node.session.config, int(order["round"])
    to = vouched_keys(order["vouchers"], node.session.servers, config, number)
    if node.model is None:
        raise InputError(f"{node.keys.name} holds no model to hand over")
    header = Header("model", config.session, config.digest, number, node.keys.name, to.name, node.digest)
    return _reply(message, model=seal(header, pack(node.model), node.keys, to))


def take(message: Message, context: Context) -> Message:
    """Take over the model of another client whom both servers vouch for.

    A wrong model cannot harm: the servers sum updates to one model alone, by its digest.
    """
    node, order = Node(context), _order(message)
    config, number = node.session.config, int(order["round"])
    sender = vouched_keys(order["vouchers"], node.session.servers, config, number)
    header, line, sealed = read_header(order["model"])
    check_header(header, config, kind="model", round=number, sender=sender.name, recipient=node.keys.name)
    arrays = unpack(open_sealed(line, sealed, node.keys, sender))
    if model_digest(arrays.to_numpy_ndarrays()) != header.model:
        raise ProtocolError(
            "model", f"the model of {sender.name} is not the one its header names; it is refused"
        )
    node.keep(arrays)
    return _reply(message, model=node.digest)


def janus_s1(message: Message, context: Context) -> Message:
    """Answer for S_1, on the node that has its keys."""
    node = Node(context)
    if not node.is_s1:
        raise InputError(f"the node has the keys of {node.keys.name}; S_1 alone answers query.janus_s1")
    answer = answer_s1(node.keys, node.session, _path(context, "janus-folder"), _order(message))
    return _reply(message, **answer)


def add_janus(app: ClientApp) -> ClientApp:
    """Let the app answer the protocol's own messages, as a client or as S_1.

    Args:
        app: made with `mods=[janus_mod]`.
    """
    app.query("janus_hello")(hello)
    app.query("janus_s1")(janus_s1)
    app.query("janus_give")(give)
    app.query("janus_take")(take)
    app.train("janus_finish")(finish)
    return app
