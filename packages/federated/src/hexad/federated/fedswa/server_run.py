"""One run of a server: where it stands, what its checkpoints hold, whom it knows, how often it failed."""

import secrets
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.supercore import log

from hexad.core.errors import InputError
from hexad.core.files import alone_in
from hexad.core.validation import check_count
from hexad.federated.fedswa.averaging import check_alike, check_finite, trainable_names
from hexad.federated.fedswa.checkpoints import Checkpoints, ServerState
from hexad.federated.fedswa.options import RoundOptions
from hexad.federated.fedswa.replies import forgot, name_of, twins


class ServerRun:
    """What a strategy keeps between rounds, from one `start` to its end.

    Args:
        options: of the strategy.
        variates: whether it has control variates.

    Attributes:
        state: after the last finished round.
        resumed: rounds that a checkpoint had done before.
        parameters: names of the trainable arrays.
        twins: pairs of arrays of which one is trainable and that may be one parameter.
        connected: how many nodes were, in the last round.
    """

    def __init__(self, options: RoundOptions, variates: bool) -> None:
        self.options = options
        self.variates = variates
        self.state = ServerState(0, {}, run=secrets.token_hex(8))
        self.resumed = self.connected = 0
        self.parameters: list[str] = []
        self.twins: list[tuple[str, str]] = []
        self._checkpoints: Checkpoints | None = None
        self._rounds = self._saved = self._failed = 0
        self._names: dict[int, str] = {}

    @contextmanager
    def open(self, theta: dict[str, np.ndarray], rounds: int, settings: dict[str, Any]) -> Generator[int]:
        """Begin with theta or where the checkpoints are; yields how many rounds are done.

        Whatever ends the block, the last finished round is saved.

        Raises:
            InputError: the checkpoints do not fit, or theta is not finite.
        """
        check_count("num_rounds", rounds)
        self._rounds = rounds
        self.take(theta)
        folder = self.options.checkpoints
        if folder is None:
            check_finite("the initial model", theta)
            yield 0
            return
        with alone_in(folder, "checkpoints") as place:
            self._checkpoints = Checkpoints(place, settings)
            state = self._checkpoints.load()
            if state is None:
                check_finite("the initial model", theta)
            else:
                self._go_on(state)
            try:
                yield self.resumed
            finally:
                self._save(at_once=True)

    def take(self, theta: dict[str, np.ndarray]) -> None:
        """Take the global model; the first time, find out what of it is trainable."""
        if self.parameters:
            self.state = replace(self.state, theta=theta)
            return
        named = self.options.parameters
        unknown = sorted(set(named or ()) - theta.keys())
        if unknown:
            raise InputError(
                f"parameters names {unknown[:3]}, which the model lacks; use names of its arrays"
            )
        self.parameters = trainable_names(theta) if named is None else [n for n in theta if n in set(named)]
        if not self.parameters:
            raise InputError("the model has no trainable parameter; pass real arrays or `parameters`")
        self.twins = twins(theta, self.parameters)
        m = {name: np.zeros_like(theta[name]) for name in self.parameters} if self.variates else {}
        self.state = replace(self.state, theta=theta, m=m)

    def _go_on(self, state: ServerState) -> None:
        folder = self.options.checkpoints
        if state.done > self._rounds:
            raise InputError(
                f"{folder} holds {state.done} rounds, more than the {self._rounds} asked for; "
                f"ask for at least {state.done}, or name another folder"
            )
        check_alike(f"the checkpoint in {folder}", state.theta, self.state.theta, "the initial model")
        check_alike(f"m in {folder}", state.m, self.state.m, "the trainable parameters")
        self.twins = twins(state.theta, self.parameters)
        self.state, self.resumed, self._saved = state, state.done, state.done
        log(INFO, "Going on after round %d from %s", state.done, folder)

    def told(self, node: int) -> dict[str, Any]:
        """What a node must know to find the control variate that the server counts.

        A node that has not answered yet may be any client, so it is told of all.
        """
        checkpoints = {} if self._checkpoints is None else self._checkpoints.counted
        counted = self.state.counted
        if node in self._names:
            name = self._names[node]
            known: dict[str, Any] = {"counted-round": counted.get(name, 0)}
            kept = {made[name] for made in checkpoints.values() if name in made}
        else:
            known = {"counted-clients": list(counted), "counted-rounds": list(counted.values())}
            kept = {number for made in checkpoints.values() for number in made.values()}
        return {"variate-run": self.state.run, **known, "kept-rounds": sorted(kept)}

    def finish(self, state: ServerState, replies: Sequence[Message] = ()) -> None:
        """A round is over, those replies counted."""
        self._failed = 0
        self._names |= {reply.metadata.src_node_id: name_of(reply) for reply in replies}
        lost = [name_of(reply) for reply in replies if forgot(reply)]
        if lost:
            warnings.warn(
                f"round {state.done}: {len(lost)} of {len(replies)} clients no longer had their control "
                f"variates and began at 0 (first: {lost[0]}); give ControlVariates a folder that lasts",
                stacklevel=3,
            )
        # One assignment: whatever interrupts, the state is that before the round or after it.
        self.state = replace(state, counted=state.counted | {name_of(reply): state.done for reply in replies})
        self._save()

    def fail(self, number: int, reasons: list[str]) -> None:
        """A round in which clients answered, and no answer counts.

        Raises:
            InputError: it is one too many.
        """
        self._failed += 1
        message = f"round {number} has no valid reply, {len(reasons)} failed; the first: {reasons[0]}"
        if self._failed >= min(self.options.max_failed_rounds, max(self._rounds - self.resumed, 1)):
            raise InputError(
                f"{message} (such rounds on end: {self._failed}; mend the clients and start again)"
            )
        warnings.warn(f"{message}; the global model stays as it is", stacklevel=3)

    def _save(self, at_once: bool = False) -> None:
        done = self.state.done
        if self._checkpoints is None or done <= self._saved:
            return
        if at_once or done == self._rounds or done % self.options.checkpoint_every == 0:
            self._checkpoints.save(self.state)
            self._saved = done
