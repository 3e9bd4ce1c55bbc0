"""What is used of Flower, imported in one place: one line says what to install where it is missing."""

from hexad.core.errors import MissingExtraError

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"Flower is needed ({error.name!r} is not installed); "
        'run: pip install "hexad-federated[flower,janus]"'
    ) from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "Result",
    "Strategy",
    "aggregate_metricrecords",
]
