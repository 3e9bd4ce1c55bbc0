"""The client's side of control variates, as a Flower mod around any train function."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
import logging
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_path
from hexad.federated.fedswa.averaging import check_alike, check_finite
from hexad.federated.fedswa.checkpoints import load_memory, save_memory
from hexad.federated.fedswa.replies import (
    ARRAYS,
    CONFIG,
    UPDATE,
    VARIATE,
    metrics_of,
    model_of,
    to_numpy,
    to_record,
    whole,
)
from hexad.federated.fedswa.variates import VariateMemory, correction, next_variate, zeros_like

logger = logging.getLogger("hexad.federated")

STATE = "c_i"
CORRECTION, GRADIENT = "correction", "gradient"


class ControlVariates:
    """A mod that keeps a client's control variate and reports its changes to `FedMoSWA` or `Scaffold`.

    Before the train function it puts the correction m - c_i into the message, as the ArrayRecord
    "correction", which `cyclic_sgd` and `local_train` add to every gradient. After it, it takes the trained
    model and the metric "lr-sum" from the reply and adds the ArrayRecord "u". A reply with an ArrayRecord
    "gradient" (of all the client's data at the model that was sent, see `full_gradient`) sets c_i to that:
    option I. Messages of other strategies and other kinds pass untouched.

    Args:
        folder: where c_i is also written, to outlive the process: a node that restarts or a new run of
            Flower begins with an empty context. The file is named after the partition, else the node. None
            takes `"variates-folder"` of the run's configuration, where it is set.

    Raises:
        InputError: in a round: a stored c_i of another model, no "lr-sum", an update that is not finite.
            Flower makes an error reply of it, which the server leaves out.
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
        number, counted = whole(config["server-round"]), whole(config["counted-round"])
        memory = self._recall(context)
        kept = memory.at(counted)
        if kept is None and counted:
            logger.info(
                "node %s knows no control variate of round %d; it begins at 0", context.node_id, counted
            )
        made, reported = kept if kept is not None else (0, zeros_like(m))
        check_alike("the stored control variate", reported, m, "the server's m")
        # A variate that is too old is replaced by m, so that nothing is corrected.
        stale = (
            "max-staleness" in config and kept is not None and number - made > whole(config["max-staleness"])
        )
        used = m if stale else reported
        message.content[CORRECTION] = to_record(correction(m, used))
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        fresh = self._fresh(reply, theta, m, used)
        base = m if config["variate-rule"] == "momentum" else reported
        reply.content[UPDATE] = to_record({name: fresh[name] - base[name] for name in m})
        memory.remember(number, fresh, counted)
        self._store(context, memory)
        return reply

    def _fresh(
        self, reply: Message, theta: dict[str, np.ndarray], m: dict[str, np.ndarray], used: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        records = reply.content.array_records
        if GRADIENT in records:
            fresh = to_numpy(records[GRADIENT])
            del reply.content[GRADIENT]
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

    def _recall(self, context: Context) -> VariateMemory:
        state = context.state
        if f"{STATE}.rounds" in state:
            names = [name for name in (f"{STATE}.before", STATE) if name in state]
            rounds: Any = state.config_records[f"{STATE}.rounds"]["rounds"]
            stored = [to_numpy(state.array_records[name]) for name in names]
            return VariateMemory(list(zip(rounds, stored, strict=True)))
        path = self._path(context)
        return VariateMemory() if path is None else load_memory(path)

    def _store(self, context: Context, memory: VariateMemory) -> None:
        state = context.state
        state[f"{STATE}.rounds"] = ConfigRecord({"rounds": [made for made, _ in memory.versions]})
        state.pop(f"{STATE}.before", None)
        for name, (_, variate) in zip((STATE, f"{STATE}.before"), reversed(memory.versions), strict=False):
            state[name] = to_record(variate)
        path = self._path(context)
        if path is not None:
            writable_folder(path.parent, "folder of control variates")
            save_memory(path, memory)


control_variate_mod = ControlVariates()
"""`ControlVariates` that keeps c_i in the node's context alone."""
