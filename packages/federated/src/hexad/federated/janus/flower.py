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

import logging
from collections.abc import Callable
from logging import ERROR, WARNING
from typing import Any

from hexad.core.errors import InputError
from hexad.federated.janus.config import check_round
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
from hexad.federated.janus.flower_instructions import instructions_digest
from hexad.federated.janus.flower_node import Held, Node, pack, unpack
from hexad.federated.janus.flower_server1 import answer_s1, vouched
from hexad.federated.janus.models import add_to, difference
from hexad.federated.janus.session_file import beside_keys
from hexad.federated.janus.tags import training_tag

log = logging.getLogger("flwr").log

RECORD = "janus"
LEAP = 256
"""How far a round may be above the last one that both servers proved to the client. A client masks for no
round twice, nor for an earlier one, so S_0 could else shut it out for good by one order of a late round."""

CallNext = Callable[[Message, Context], Message]


def janus_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Give the app the client's own model, and send what it trained masked and sealed.

    Args:
        message: "train" or "evaluate" of Janus; Janus's own actions and queries pass.
        context: of the node.
        call_next: the app.

    Raises:
        InputError: training or an evaluation that is not asked for by Janus, whose reply S_0 could read; a
            second training in one round, or one in a round that is implausibly late; the app raises, or its
            reply has no arrays or no `num-examples`; see also `JanusClient.protect`.
        ProtocolError: check `"epoch"`: a server has lost or replaced its folder.
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
    number, client = _round(order), node.client(order)
    if category == MessageType.TRAIN and number <= client.last_round:
        raise InputError(f"{node.keys.name} has trained for round {client.last_round} already; it is refused")
    proven = 0 if node.held is None else node.held.round
    if number > proven + LEAP:
        raise InputError(
            f"round {number} is more than {LEAP} above {proven}, the last that {node.keys.name} has a proof "
            "of; it is refused, as a client takes no earlier round afterwards"
        )
    # A first model comes from S_0 and is public; later ones never do.
    offered = message.content.array_records.get("arrays")
    if node.held is None and offered is not None:
        node.keep(Held(offered))
    held = node.held
    if held is None:
        raise InputError(
            f"{node.keys.name} holds no model yet and was given none; a client must hand one over"
        )
    told = instructions_digest(message.content, context.run_config, held.arrays)
    # First, wherever S_0 put it: an app may take its arrays by place.
    others = {name: record for name, record in message.content.items() if name not in (RECORD, "arrays")}
    message.content = RecordDict({"arrays": ArrayRecord(dict(held.arrays)), **others})
    try:
        reply = call_next(message, context)
    except Exception as error:
        # S_0 reads the reason of an error, and the text may quote data.
        log(ERROR, "the %s function of %s failed", category, node.keys.name, exc_info=error)
        raise InputError(
            f"the {category} function of {node.keys.name} raised {type(error).__name__}; see its log"
        ) from None
    if not reply.has_content():
        return reply
    if category == MessageType.EVALUATE:
        if reply.content.array_records:
            raise InputError("the evaluate function returned arrays, which S_0 could read; return metrics")
        return reply
    arrays, examples = _trained(reply, node)
    update = difference(arrays.to_numpy_ndarrays(), held.arrays.to_numpy_ndarrays())
    training = training_tag(held.secret, node.config, number, told)
    sent = client.protect(update, examples, number, node.tag_of(held), training)
    if client.clipped:
        log(
            WARNING,
            "%s of %s numbers clipped to %g; raise clip",
            client.clipped,
            update.size,
            node.config.clip,
        )
    client.epochs = node.memory.epochs  # what S_0 says is believed when a sum proves it
    node.remember(client, training=training)
    content = {"name": node.keys.name, "to-s0": sent.to_s0, "to-s1": sent.to_s1}
    return Message(RecordDict({RECORD: ConfigRecord(content)}), reply_to=message)


def _trained(reply: Message, node: Node) -> tuple[ArrayRecord, int]:
    arrays, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
    if len(arrays) != 1:
        raise InputError(
            f"the train function returned {len(arrays)} records of arrays; return one, as for FedAvg"
        )
    for record in metrics:
        if isinstance(examples := record.get("num-examples"), (int, float)):
            if float(examples).is_integer() and 1 <= examples <= node.config.max_weight:
                return arrays[0], int(examples)
            log(ERROR, "num-examples of %s is %r", node.keys.name, examples)  # S_0 is not to read it
            raise InputError(
                f"num-examples must be a whole number in [1, {node.config.max_weight}], the client's weight"
            )
    raise InputError("the train function returned no metric 'num-examples'; it is the client's weight")


def _order(message: Message) -> dict[str, Any]:
    """What the message asks, as plain values."""
    if not message.has_content() or RECORD not in message.content.config_records:
        raise InputError(f"{message.metadata.message_type!r} has no record of janus; it is refused")
    return dict(message.content.config_records[RECORD])


def _round(order: dict[str, Any]) -> int:
    return check_round(order.get("round", 0))


def _bytes(order: dict[str, Any], name: str) -> bytes:
    value = order.get(name)
    return value if isinstance(value, bytes) else b""  # which is no message, and refused as such


def _reply(message: Message, **values: Any) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def hello(message: Message, context: Context) -> Message:
    """Say who the node is and which model it holds (by its tag)."""
    node = Node(context)
    if node.is_s1:
        return _reply(message, name=node.keys.name, s1=True, **_answer_s1(node, {"stage": "epoch"}))
    number = 0 if node.held is None else node.held.round
    return _reply(message, name=node.keys.name, s1=False, model=node.tag, round=number)


def finish(message: Message, context: Context) -> Message:
    """Verify the round's sum and apply it to the client's own model.

    Raises:
        ProtocolError: the servers do not prove it; the model stays as it is.
    """
    node, order = Node(context), _order(message)
    number, held = _round(order), node.held
    if held is None:
        raise InputError(f"{node.keys.name} holds no model that a sum could be applied to")
    if number <= held.round:
        raise ProtocolError(
            "round", f"the sum of round {held.round} is in the model of {node.keys.name} already"
        )
    client, memory = node.client(order), node.memory
    training = memory.training if memory.round == number else ""
    replies = _bytes(order, "from-s0"), _bytes(order, "from-s1")
    result = client.verify_and_unmask(*replies, number, node.tag_of(held), training)
    moved = add_to(held.arrays.to_numpy_ndarrays(), result.mean)
    arrays = ArrayRecord({name: Array(array) for name, array in zip(held.arrays, moved, strict=True)})
    node.keep(Held(arrays, number, result.secret))
    node.remember(client)
    # Neither the sum nor its weight: S_0 reads this.
    metrics = {"accepted": 1, "included": int(result.included)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def give(message: Message, context: Context) -> Message:
    """Seal the client's model to another client whom both servers vouch for."""
    node, order = Node(context), _order(message)
    config, number, held = node.config, _round(order), node.held
    to, _ = vouched(order.get("vouchers"), node.session.servers, config, number)
    if held is None:
        raise InputError(f"{node.keys.name} holds no model to hand over")
    header = Header("model", config.session, config.digest, number, node.keys.name, to.name, node.tag)
    return _reply(message, model=seal(header, pack(held), node.keys, to))


def take(message: Message, context: Context) -> Message:
    """Take over the model of another client whom both servers vouch for.

    Only where the client has none, or both servers say that they summed a round that is not in its own: so
    S_0 and a client on its side cannot put another model in the place of a good one.

    Raises:
        ProtocolError: check `"round"`: the client's model lacks no round; `"model"`: it is not what it says.
    """
    node, order = Node(context), _order(message)
    config, number, held = node.config, _round(order), node.held
    sender, summed = vouched(order.get("vouchers"), node.session.servers, config, number)
    if held is not None and summed <= held.round:
        raise ProtocolError(
            "round", f"the model of {node.keys.name} lacks no round; another client's is refused"
        )
    header, line, sealed = read_header(_bytes(order, "model"))
    check_header(header, config, kind="model", round=number, sender=sender.name, recipient=node.keys.name)
    given = unpack(open_sealed(line, sealed, node.keys, sender))
    if node.tag_of(given) != header.model:
        raise ProtocolError(
            "model", f"the model of {sender.name} is not the one its header names; it is refused"
        )
    # How far it is the servers say, and not the client that gives it.
    node.keep(Held(given.arrays, summed, given.secret))
    return _reply(message, model=node.tag)


def janus_s1(message: Message, context: Context) -> Message:
    """Answer for S_1, on the node that has its keys."""
    node = Node(context)
    if not node.is_s1:
        raise InputError(f"the node has the keys of {node.keys.name}; S_1 alone answers query.janus_s1")
    return _reply(message, **_answer_s1(node, _order(message)))


def _answer_s1(node: Node, order: dict[str, Any]) -> dict[str, Any]:
    mark = beside_keys(node.keys_file, node.config) / "mark.json"
    return answer_s1(node.keys, node.session, node.path("janus-folder"), mark, order)


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
