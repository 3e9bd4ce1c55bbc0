"""What a client's reply must hold before a server counts it."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecordValues, Message, MetricRecord

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.federated.fedswa.averaging import Arrays, check_alike, check_finite

ARRAYS, VARIATE, UPDATE, CONFIG = "arrays", "m", "u", "config"
"""Names of the records in messages: the model, the server's variate, the client's change of it, settings."""


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
            the number of examples is missing or negative; the sum of the rates is missing (with `m`) or not
            above 0.
    """
    metrics = metrics_of(reply)
    examples = metrics.get(weight)
    if not isinstance(examples, (int, float)):
        raise InputError(f"its metrics lack the number {weight!r}; add it")
    check_range(weight, examples, 0)
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


def check_metrics(metrics: Sequence[MetricRecord]) -> None:
    """Refuse (`InputError`) replies whose metrics have different names: their means would be of few."""
    for record in metrics[1:]:
        if record.keys() != metrics[0].keys():
            names = sorted(record.keys() ^ metrics[0].keys())
            raise InputError(f"clients report different metrics ({names[:5]}); let all report the same")
