"""The client's side of control variates, as a Flower mod around any train function."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
import logging
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_path
from hexad.federated.fedswa.averaging import check_alike, check_finite
from hexad.federated.fedswa.memory import VariateMemory, load_memory, save_memory
from hexad.federated.fedswa.replies import (
    ARRAYS,
    CLIENT,
    CONFIG,
    UPDATE,
    VARIATE,
    metrics_of,
    model_of,
    to_numpy,
    to_record,
    whole,
)
from hexad.federated.fedswa.variates import correction, next_variate, zeros_like

logger = logging.getLogger("hexad.federated")

STATE = "c_i"
CORRECTION, GRADIENT = "correction", "gradient"


class Correction(ArrayRecord):
    """m - c_i in a message; it notices whether the train function looks at it."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.__dict__["looks"] = []
        for name, array in arrays.items():
            self[name] = Array(np.asarray(array))

    @property
    def seen(self) -> bool:
        """Whether an array was taken out, of this record or of a copy."""
        return bool(self.__dict__["looks"])

    def __getitem__(self, item: str) -> Array:
        self.__dict__["looks"].append(item)
        return super().__getitem__(item)

    def items(self) -> Any:
        """As of any record."""
        self.__dict__["looks"].append("items")
        return super().items()

    def values(self) -> Any:
        """As of any record."""
        self.__dict__["looks"].append("values")
        return super().values()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = self.copy()
        new.__dict__["looks"] = self.__dict__["looks"]
        return new


class ControlVariates:
    """A mod that keeps a client's control variate and reports its changes to `FedMoSWA` or `Scaffold`.

    Before the train function it puts the correction m - c_i into the message, as the ArrayRecord
    "correction", which `cyclic_sgd` and `local_train` add to every gradient. After it, it takes the trained
    model and the metric "lr-sum" from the reply and adds the ArrayRecord "u". A reply with an ArrayRecord
    "gradient" (of all the client's data at the model that was sent, see `full_gradient`) sets c_i to that:
    option I. Messages of other strategies and other kinds pass untouched.

    A client is known to the server by its `"partition-id"`, where its node's configuration has one, else by
    its node id. What it remembers is of one run of the server, resumed or not; another begins at 0.

    Args:
        folder: where c_i is also written, to outlive the process: a node that restarts or a new run of
            Flower begins with an empty context. The file is named after the partition, else the node. None
            takes `"variates-folder"` of the run's configuration, where it is set.

    Raises:
        InputError: in a round: a stored c_i of another model, no "lr-sum", an update that is not finite, a
            train function that does not look at the correction. Flower makes an error reply of it, which
            the server leaves out.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else check_path(folder, "folder of control variates")

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Run the train function between the two halves of the mod."""
        if not message.has_content() or VARIATE not in message.content.array_records:
            return call_next(message, context)
        sent = message.content.array_records
        config = message.content.config_records[CONFIG]
        theta, m = to_numpy(sent[ARRAYS]), to_numpy(sent[VARIATE])
        number, counted = whole(config["server-round"]), _counted(config, _name(context))
        memory = self._recall(context, str(config.get("variate-run", "")))
        kept = memory.of(counted)
        forgot = kept is None and counted > 0
        if forgot:
            logger.warning(
                "%s has no control variate of round %d any more; it begins at 0", _name(context), counted
            )
        reported: dict[str, np.ndarray] = zeros_like(m) if kept is None else kept
        check_alike("the stored control variate", reported, m, "the server's m")
        # A variate that is too old is replaced by m, so that nothing is corrected.
        limit = config.get("max-staleness")
        stale = limit is not None and kept is not None and number - counted > whole(limit)
        used = m if stale else reported
        shift = Correction(correction(m, used))
        message.content[CORRECTION] = shift
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if not shift.seen:
            raise InputError(
                "the train function did not use the correction; make its optimizer by "
                "cyclic_sgd(model, message)"
            )
        fresh = self._fresh(reply, theta, m, used)
        base = m if config["variate-rule"] == "momentum" else reported
        reply.content[UPDATE] = to_record({name: fresh[name] - base[name] for name in m})
        reply.content[CLIENT] = ConfigRecord({"name": _name(context), "forgot": forgot})
        rounds: Any = config.get("kept-rounds", [])
        memory.remember(number, fresh, counted, rounds)
        self._store(context, memory)
        return reply

    def _fresh(
        self, reply: Message, theta: dict[str, np.ndarray], m: dict[str, np.ndarray], used: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        records = reply.content.array_records
        if GRADIENT in records:
            given = to_numpy(records[GRADIENT])
            del reply.content[GRADIENT]
            # A gradient of all parameters serves where the server names a part of them.
            fresh = {name: array for name, array in given.items() if name in m or name not in theta}
            check_alike("the client's gradient", fresh, m, "the server's m")
            check_finite("the client's gradient", fresh)
            return fresh
        model = model_of(reply)
        missing = sorted(m.keys() - model.keys())
        if missing:
            raise InputError(f"the trained model lacks {missing[:3]}; reply with all parameters")
        lr_sum = metrics_of(reply).get("lr-sum")
        if not isinstance(lr_sum, (int, float)):
            raise InputError("the reply's metrics lack 'lr-sum'; add the optimizer's lr_sum")
        return next_variate(used, m, {name: model[name] - theta[name] for name in m}, float(lr_sum))

    def _path(self, context: Context) -> Path | None:
        folder = self.folder or context.run_config.get("variates-folder")
        name = context.node_config.get("partition-id", context.node_id)
        return Path(str(folder)) / f"{name}.safetensors" if folder else None

    def _recall(self, context: Context, run: str) -> VariateMemory:
        """What is remembered of this run of the server."""
        state, path = context.state, self._path(context)
        memory = VariateMemory()
        if f"{STATE}.rounds" in state:
            note: Any = state.config_records[f"{STATE}.rounds"]
            versions = {
                made: to_numpy(state.array_records[_place(back)])
                for back, made in enumerate(reversed(note["rounds"]))
            }
            memory = VariateMemory(note["run"], versions)
        elif path is not None:
            memory = load_memory(path)
        if memory.versions and memory.run != run:
            logger.info("%s leaves the control variates of another run behind", _name(context))
        return memory if memory.run == run else VariateMemory(run)

    def _store(self, context: Context, memory: VariateMemory) -> None:
        state = context.state
        for name in [name for name in state if name.startswith(f"{STATE}.")]:
            del state[name]
        state[f"{STATE}.rounds"] = ConfigRecord({"rounds": list(memory.versions), "run": memory.run})
        for back, variate in enumerate(reversed(memory.versions.values())):
            state[_place(back)] = to_record(variate)
        path = self._path(context)
        if path is not None:
            writable_folder(path.parent, "folder of control variates")
            save_memory(path, memory)


def _name(context: Context) -> str:
    """By what the server knows a client."""
    part = context.node_config.get("partition-id")
    return f"node {context.node_id}" if part is None else f"partition {part}"


def _place(back: int) -> str:
    """Where in the context the newest variate is (0), and those before it."""
    return f"{STATE}.{back}" if back else STATE


def _counted(config: ConfigRecord, name: str) -> int:
    """The client's last round that the server counts; a server that does not know the node tells of all."""
    if "counted-clients" not in config:
        return whole(config["counted-round"])
    clients: Any = config["counted-clients"]
    rounds: Any = config["counted-rounds"]
    return dict(zip(clients, rounds, strict=True)).get(name, 0)


control_variate_mod = ControlVariates()
"""`ControlVariates` that keeps c_i in the node's context alone."""
