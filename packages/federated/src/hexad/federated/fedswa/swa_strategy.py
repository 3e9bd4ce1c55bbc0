"""The Flower strategy FedSWA (Liu et al., ICML 2025, arXiv 2507.20016), on which those with variates build.

It runs with any client that trains by SGD and returns its model. Clients that want the cyclic rate read it
from the message (`cyclic_sgd`, `local_config`).
"""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
import random
import warnings
from collections.abc import Callable, Iterable
from logging import INFO
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.federated.fedswa.averaging import (
    check_alike,
    extrapolate,
    trainable_names,
    weighted_mean,
)
from hexad.federated.fedswa.checkpoints import ServerState, load_server, save_server
from hexad.federated.fedswa.options import RoundKeywords, RoundOptions
from hexad.federated.fedswa.replies import (
    ARRAYS,
    CONFIG,
    UPDATE,
    VARIATE,
    check_metrics,
    check_reply,
    metrics_of,
    model_of,
    to_numpy,
    to_record,
)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FedSWA(FedAvg):
    """FedSWA: clients cycle their rate within the round, the server goes beyond the mean of their models.

    Clients get rho, the rate and the number of steps with each message; with rho = 1 and server_alpha = 1
    this is FedAvg, to the last bit where all clients have equally many examples.

    Args:
        lr: eta_l, the rate that a round begins with; None takes `"lr"` of the train_config of `start`. The
            authors advise about twice FedAvg's.
        rho: in (0, 1]; the cycle heads for rho lr.
        server_alpha: above 0; how far the server goes from theta (0) past the clients' mean (1).
        local_steps: K, sent to the clients; None leaves it to them.
        options: the fields of `RoundOptions` by name: fraction_train, seed, schedule, checkpoints ...

    Raises:
        InputError: a value is out of range.
    """

    rule: Literal["", "momentum", "difference"] = ""
    """How clients report their control variate; "" is not at all."""

    def __init__(
        self,
        *,
        lr: float | None = None,
        rho: float = 0.1,
        server_alpha: float = 1.5,
        local_steps: int | None = None,
        **options: Unpack[RoundKeywords],
    ) -> None:
        if lr is not None:
            check_range("lr", lr, 0, low_open=True)
        check_range("rho", rho, 0, 1, low_open=True)
        check_range("server_alpha", server_alpha, 0, low_open=True)
        if local_steps is not None:
            check_count("local_steps", local_steps)
        self.options = RoundOptions(**options)
        super().__init__(
            fraction_train=self.options.fraction_train,
            fraction_evaluate=self.options.fraction_evaluate,
            min_train_nodes=self.options.min_train_nodes,
            min_evaluate_nodes=self.options.min_evaluate_nodes,
            min_available_nodes=self.options.min_available_nodes,
            train_metrics_aggr_fn=self.options.train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=self.options.evaluate_metrics_aggr_fn,
        )
        self.lr, self.rho, self.server_alpha, self.local_steps = lr, rho, server_alpha, local_steps
        self._rounds = 0
        self._forget()

    def _forget(self) -> None:
        """Begin anew."""
        self._resumed = self._clients = 0
        self._renamed = False
        self._theta: dict[str, np.ndarray] = {}
        self._parameters: list[str] = []
        self._variate: dict[str, np.ndarray] = {}
        self._counted: dict[int, int] = {}

    @property
    def m(self) -> dict[str, np.ndarray]:
        """The server's control variate by parameter, as it stands; empty before the first round."""
        return dict(self._variate)

    def settings(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint must not change, as JSON values."""
        own = {"strategy": type(self).__name__, "lr": self.lr, "rho": self.rho, "alpha": self.server_alpha}
        course = {"rounds": self._rounds} if self.options.schedule.course == "cosine" else {}
        return own | {"local_steps": self.local_steps} | course | self.options.described()

    def summary(self) -> None:
        """Log the settings."""
        super().summary()
        log(INFO, "\t└──> %s: %s", type(self).__name__, self.settings())

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds, or those that a checkpoint leaves to do; rounds keep their numbers.

        Args:
            grid: of the nodes.
            initial_arrays: theta of a fresh run.
            num_rounds: in all.
            timeout: seconds to wait for replies; later ones are left out.
            train_config: sent to the clients, with what the strategy adds.
            evaluate_config: sent with evaluations.
            evaluate_fn: `(round, arrays) -> metrics`, on the server.

        Raises:
            InputError: a checkpoint of other settings or of another model, replies that cannot be averaged.
        """
        check_count("num_rounds", num_rounds)
        self._rounds = num_rounds
        self._forget()
        folder = self.options.checkpoints
        state = load_server(Path(folder), self.settings()) if folder is not None else None
        if state is not None:
            self._begin(to_numpy(initial_arrays))
            check_alike(f"the checkpoint in {folder}", state.theta, self._theta, "the initial model")
            if self.rule:
                check_alike(f"m in {folder}", state.m, self._variate, "the trainable parameters")
            self._resumed, self._counted, self._variate = state.done, state.counted, state.m
            initial_arrays = to_record(state.theta)
            log(INFO, "Going on after round %d from %s", state.done, folder)
        done = min(self._resumed, num_rounds)
        shifted = None if evaluate_fn is None else lambda number, arrays: evaluate_fn(number + done, arrays)
        result = super().start(
            grid, initial_arrays, num_rounds - done, timeout, train_config, evaluate_config, shifted
        )
        if not result.arrays:
            result.arrays = initial_arrays
        for metrics in (
            *(result.train_metrics_clientapp, result.evaluate_metrics_clientapp),
            result.evaluate_metrics_serverapp,
        ):
            shifted_keys = {number + done: record for number, record in metrics.items()}
            metrics.clear()
            metrics.update(shifted_keys)
        return result

    def _begin(self, theta: dict[str, np.ndarray]) -> None:
        """Take the global model of a round; in the first, also which of it is trainable."""
        self._theta = theta
        if self._parameters:
            return
        named = self.options.parameters
        unknown = sorted(set(named or ()) - theta.keys())
        if unknown:
            raise InputError(
                f"parameters names {unknown[:3]}, which the model lacks; use names of its arrays"
            )
        self._parameters = trainable_names(theta) if named is None else [n for n in theta if n in set(named)]
        if not self._parameters:
            raise InputError("the model has no trainable parameter; pass real arrays or `parameters`")
        if self.rule:
            self._variate = {name: np.zeros_like(theta[name]) for name in self._parameters}

    def _sample(self, grid: Grid, number: int) -> list[int]:
        """Ids of the nodes that train in this round."""
        connected = len(list(grid.get_node_ids()))
        size = max(int(connected * self.fraction_train), self.min_train_nodes)
        chosen, connected_ids = sample_nodes(grid, self.min_available_nodes, size)
        self._clients = len(connected_ids)
        # After a restart nodes may have other ids, and what was counted of each is unknown.
        self._renamed = bool(self._counted) and not self._counted.keys() & set(connected_ids)
        if self.options.seed is None:
            return chosen
        return random.Random(f"{self.options.seed}-{number}").sample(sorted(connected_ids), size)

    def _round_config(self, config: ConfigRecord, number: int) -> dict[str, Any]:
        """What the clients are told in this round, beside what differs between them."""
        told = dict(config)
        lr = self.lr if self.lr is not None else told.get("lr")
        if not isinstance(lr, (int, float)) or isinstance(lr, bool):
            raise InputError(f"no learning rate; pass lr to {type(self).__name__}, or 'lr' in train_config")
        if self.lr is not None and told.get("lr", self.lr) != self.lr:
            raise InputError(f"lr is {self.lr:g} and train_config says {told['lr']}; drop one of the two")
        rate = self.options.schedule.rate(float(lr), number, max(self._rounds, number))
        told |= {"server-round": number, "lr": rate, "rho": self.rho}
        told |= {"weight-decay": self.options.weight_decay, "clip-norm": self.options.clip_norm or 0.0}
        if self.local_steps is not None:
            told["local-steps"] = self.local_steps
        return told

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the nodes of a round and write their messages."""
        if self.fraction_train == 0.0:
            return []
        number = server_round + self._resumed
        self._begin(to_numpy(arrays))
        told = self._round_config(config, number)
        nodes = self._sample(grid, number)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(nodes), self._clients)
        if not self.rule:
            record = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(told)})
            return [Message(record, node, MessageType.TRAIN) for node in nodes]
        variate = to_record(self._variate)
        return [
            Message(
                RecordDict(
                    {
                        ARRAYS: arrays,
                        VARIATE: variate,
                        CONFIG: ConfigRecord(told | self._for_node(node)),
                    }
                ),
                node,
                MessageType.TRAIN,
            )
            for node in nodes
        ]

    def _for_node(self, node: int) -> dict[str, Any]:
        """What one client is told of its control variate: nodes that are new may know of rounds before."""
        unknown = self._resumed if self._renamed else 0
        return {"variate-rule": self.rule, "counted-round": self._counted.get(node, unknown)}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies that came, and take the server's step.

        Nothing changes where a reply is refused. Without any reply theta stays and a warning says so.

        Raises:
            InputError: a reply cannot be averaged and `bad_replies` is `"raise"`.
        """
        number = server_round + self._resumed
        valid, _ = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        good = self._counting(valid)
        if not good:
            if self.fraction_train:
                warnings.warn(
                    f"round {number} has no valid reply; the global model stays as it is", stacklevel=2
                )
            self._save(number)
            return None, None
        metrics = [metrics_of(reply) for reply in good]
        check_metrics(metrics)
        key = self.weighted_by_key
        weights = [float(record[key]) if self.options.weighted else 1.0 for record in metrics]  # ty: ignore[invalid-argument-type]
        mean = weighted_mean((model_of(reply) for reply in good), weights)
        theta = extrapolate(self._theta, mean, self.server_alpha, frozenset(self._parameters))
        if self.rule:
            # SCAFFOLD's variate is the plain mean of all clients', whatever the models weigh.
            shares = weights if self.rule == "momentum" else [1.0] * len(good)
            update = weighted_mean((to_numpy(reply.content.array_records[UPDATE]) for reply in good), shares)
            self._variate = self._next_variate(update, len(good))
        self._theta = theta
        self._counted |= {reply.metadata.src_node_id: number for reply in good}
        self._save(number)
        reported = [RecordDict({"metrics": record}) for record in metrics]
        return to_record(theta), self.train_metrics_aggr_fn(reported, key)

    def _next_variate(self, update: dict[str, np.ndarray], participants: int) -> dict[str, np.ndarray]:
        """The server's control variate after a round: FedSWA has none, which stays as it is."""
        return self._variate

    def _counting(self, replies: list[Message]) -> list[Message]:
        """The replies that can be averaged."""
        good = []
        for reply in replies:
            try:
                check_reply(reply, self._theta, self._variate if self.rule else None, self.weighted_by_key)
            except InputError as error:
                message = f"reply of node {reply.metadata.src_node_id} cannot be averaged: {error}"
                if self.options.bad_replies == "raise":
                    raise InputError(message) from None
                warnings.warn(f"{message}; it is left out", stacklevel=3)
            else:
                good.append(reply)
        return good

    def _save(self, number: int) -> None:
        folder = self.options.checkpoints
        last = number == self._rounds
        if folder is not None and (last or number % self.options.checkpoint_every == 0):
            state = ServerState(number, self._theta, self._variate, self._counted, self.settings())
            save_server(Path(folder), state)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg, with the round's number counted over resumed runs."""
        return super().configure_evaluate(server_round + self._resumed, arrays, config, grid)
