"""What a client's reply must hold before a server counts it."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecordValues, Message, MetricRecord

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.federated.fedswa.averaging import Arrays, check_alike, check_finite, is_floating

ARRAYS, VARIATE, UPDATE, CONFIG = "arrays", "m", "u", "config"
"""Names of the records in messages: the model, the server's variate, the client's change of it, settings."""

CLIENT = "client"
"""The ConfigRecord in replies by which `ControlVariates` says whose control variate it is."""


def whole(value: ConfigRecordValues) -> int:
    """A whole number of a `ConfigRecord`.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"the message's config has {value!r} where a whole number should be")
    return value


def to_numpy(record: ArrayRecord) -> dict[str, np.ndarray]:
    """An `ArrayRecord` as numpy arrays by name."""
    return {name: array.numpy() for name, array in record.items()}


def to_record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    """Numpy arrays by name as an `ArrayRecord`."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def metrics_of(reply: Message) -> MetricRecord:
    """The one `MetricRecord` of a reply.

    Raises:
        InputError: there is none, or more than one.
    """
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise InputError(f"it holds {len(records)} MetricRecords; send one")
    return records[0]


def model_of(reply: Message) -> dict[str, np.ndarray]:
    """The trained model of a reply: its only `ArrayRecord`, or that named "arrays".

    Raises:
        InputError: it cannot be told.
    """
    records = reply.content.array_records
    if ARRAYS in records:
        return to_numpy(records[ARRAYS])
    if len(records) != 1:
        raise InputError(f"it holds no ArrayRecord {ARRAYS!r}; send the trained model under that name")
    return to_numpy(next(iter(records.values())))


def check_reply(reply: Message, theta: Arrays, m: Arrays | None, weight: str) -> None:
    """Refuse a reply that cannot be averaged.

    Args:
        reply: without an error.
        theta: the model that was sent.
        m: the variate that was sent, or None where the strategy has none.
        weight: name of the number of examples among the metrics.

    Raises:
        InputError: names, shapes or kinds of numbers are not those of theta or m; something is not finite;
            the number of examples is missing or not above 0; the sum of the rates is missing (with `m`) or
            not above 0.
    """
    metrics = metrics_of(reply)
    examples = metrics.get(weight)
    if not isinstance(examples, (int, float)):
        raise InputError(f"its metrics lack the number {weight!r}; add it")
    check_range(weight, examples, 0, low_open=True)
    model = model_of(reply)
    check_alike("the model", model, theta, "the global model")
    check_finite("the model", model)
    if m is not None:
        if UPDATE not in reply.content.array_records:
            raise InputError(
                f"it lacks the ArrayRecord {UPDATE!r}; add control_variate_mod to the client app"
            )
        update = to_numpy(reply.content.array_records[UPDATE])
        check_alike("the control variate's update", update, m, "the server's m")
        check_finite("the control variate's update", update)
    if m is not None or "lr-sum" in metrics:
        lr_sum = metrics.get("lr-sum")
        if not isinstance(lr_sum, (int, float)):
            raise InputError("its metrics lack the number 'lr-sum'; add the optimizer's lr_sum")
        check_range("lr-sum", lr_sum, 0, low_open=True)


def reason_of(reply: Message) -> str:
    """What an error reply says, on one line."""
    return " ".join((reply.error.reason or f"error {reply.error.code}").split())


def name_of(reply: Message) -> str:
    """Whose reply it is: the partition where the client's mod says it, else the node."""
    said = reply.content.config_records.get(CLIENT, {}).get("name")
    return said if isinstance(said, str) else f"node {reply.metadata.src_node_id}"


def forgot(reply: Message) -> bool:
    """Whether the client no longer had the control variate that the server counts."""
    return bool(reply.content.config_records.get(CLIENT, {}).get("forgot", False))


def countable(
    replies: Sequence[Message], theta: Arrays, m: Arrays | None, weight: str, lenient: bool
) -> tuple[list[Message], list[str]]:
    """The replies that can be averaged, and what is wrong with the others.

    Args:
        replies: without errors.
        theta: see `check_reply`.
        m: see `check_reply`.
        weight: see `check_reply`.
        lenient: leave the others out with a warning.

    Raises:
        InputError: one cannot be averaged, and `lenient` is off.
    """
    wrong: dict[int, str] = {}
    for place, reply in enumerate(replies):
        try:
            check_reply(reply, theta, m, weight)
        except InputError as error:
            wrong[place] = str(error)
    wrong |= _odd_ones({place: reply for place, reply in enumerate(replies) if place not in wrong})
    messages = [
        f"reply of node {replies[place].metadata.src_node_id} cannot be averaged: {text}"
        for place, text in sorted(wrong.items())
    ]
    if messages and not lenient:
        raise InputError(messages[0])
    for message in messages:
        warnings.warn(f"{message}; it is left out", stacklevel=4)
    return [reply for place, reply in enumerate(replies) if place not in wrong], messages


def _odd_ones(replies: Mapping[int, Message]) -> dict[int, str]:
    """What is wrong with replies beside others: metrics that most do not have, a client that came twice."""
    wrong = {}
    kinds = {place: _kinds(metrics_of(reply)) for place, reply in replies.items()}
    usual = Counter(kinds.values()).most_common(1)
    owners: dict[str, int] = {}
    for place, reply in replies.items():
        name, node = name_of(reply), reply.metadata.src_node_id
        if kinds[place] != usual[0][0]:
            names = sorted({metric for metric, _ in kinds[place] ^ usual[0][0]})
            wrong[place] = (
                f"it has different metrics from most replies ({names[:5]}); let all report the same"
            )
        elif owners.setdefault(name, node) != node:
            wrong[place] = (
                f"it is of {name}, as is that of node {owners[name]}; give every node its own partition-id"
            )
    return wrong


def _kinds(metrics: MetricRecord) -> frozenset[tuple[str, int | None]]:
    """Names of metrics, with the lengths of those that are lists: what can be averaged with the same."""
    return frozenset(
        (name, len(value) if isinstance(value, list) else None) for name, value in metrics.items()
    )


def twins(theta: Arrays, parameters: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of a trainable array and one that is not said to be, with the same numbers: perhaps tied."""
    others = [name for name in theta if name not in set(parameters) and is_floating(theta[name])]
    return [
        (name, other)
        for other in others
        for name in parameters
        if theta[name].size and np.array_equal(theta[name], theta[other])
    ]


def check_untied(pairs: Sequence[tuple[str, str]], theta: Arrays, model: Arrays) -> None:
    """Refuse (`InputError`) a trained model in which a pair moved as one: its names are of one parameter.

    The server would extrapolate one name and average the other.
    """
    for name, other in pairs:
        moved = not np.array_equal(model[name], theta[name])
        if moved and np.array_equal(model[name], model[other]):
            raise InputError(
                f"{name!r} and {other!r} are one tied parameter and `parameters` names only the first; pass "
                "parameters=[name for name, _ in model.named_parameters(remove_duplicate=False)]"
            )
