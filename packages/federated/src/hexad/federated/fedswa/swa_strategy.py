"""The Flower strategy FedSWA (Liu et al., ICML 2025, arXiv 2507.20016), on which those with variates build.

It runs with any client that trains by SGD and returns its model. Clients that want the cyclic rate read it
from the message (`cyclic_sgd`, `local_config`).
"""

from hexad.federated.flower import check_enough_nodes  # first: says what to install without Flower

# isort: split
import random
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO
from typing import Any, Literal, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.supercore import log

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_range
from hexad.federated.fedswa.averaging import extrapolate, weighted_mean
from hexad.federated.fedswa.options import RoundKeywords, RoundOptions
from hexad.federated.fedswa.replies import (
    ARRAYS,
    CONFIG,
    UPDATE,
    VARIATE,
    check_untied,
    countable,
    metrics_of,
    model_of,
    reason_of,
    to_numpy,
    to_record,
)
from hexad.federated.fedswa.schedule import check_steps
from hexad.federated.fedswa.server_run import ServerRun

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
        InputError: a value is out of range, or an option unknown.
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
            lr = float(check_range("lr", lr, 0, low_open=True))
        check_range("rho", rho, 0, 1, low_open=True)
        check_range("server_alpha", server_alpha, 0, low_open=True)
        if local_steps is not None:
            local_steps = check_steps(local_steps)
        for name in options:
            check_choice(f"option of {type(self).__name__}", name, RoundKeywords.__annotations__)
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
        self.lr, self.rho, self.server_alpha, self.local_steps = lr, float(rho), server_alpha, local_steps
        self._told_lr: Any = None
        self._rounds = 0
        self._run = ServerRun(self.options, bool(self.rule))

    @property
    def m(self) -> dict[str, np.ndarray]:
        """The server's control variate by parameter, as it stands; empty before the first round."""
        return dict(self._run.state.m)

    def settings(self) -> dict[str, Any]:
        """What a run that goes on from a checkpoint must not change, as JSON values."""
        lr = self._told_lr if self.lr is None else self.lr
        own = {"strategy": type(self).__name__, "lr": lr, "rho": self.rho, "alpha": self.server_alpha}
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

        However it ends, the rounds that are finished are in the checkpoints.

        Args:
            grid: of the nodes.
            initial_arrays: theta of a fresh run.
            num_rounds: in all.
            timeout: seconds to wait for replies; later ones are left out.
            train_config: sent to the clients, with what the strategy adds.
            evaluate_config: sent with evaluations.
            evaluate_fn: `(round, arrays) -> metrics`, on the server.

        Raises:
            InputError: a checkpoint of other settings, of another model or of more rounds; a folder in which
                another run is writing; replies that cannot be averaged; clients that all fail, see
                `RoundOptions`; an InProcessGrid with too few nodes.
        """
        check_enough_nodes(grid, self)
        self._rounds = num_rounds
        self._told_lr = (train_config or {}).get("lr")
        self._run = ServerRun(self.options, bool(self.rule))
        with self._run.open(to_numpy(initial_arrays), num_rounds, self.settings()) as done:
            if done:
                initial_arrays = to_record(self._run.state.theta)
            shifted = (
                None if evaluate_fn is None else lambda number, arrays: evaluate_fn(number + done, arrays)
            )
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

    def _sample(self, grid: Grid, number: int) -> list[int]:
        """Ids of the nodes that train in this round."""
        connected = len(list(grid.get_node_ids()))
        size = max(int(connected * self.fraction_train), self.min_train_nodes)
        chosen, connected_ids = sample_nodes(grid, self.min_available_nodes, size)
        self._run.connected = len(connected_ids)
        if self.options.seed is None:
            return chosen
        return random.Random(f"{self.options.seed}-{number}").sample(sorted(connected_ids), size)

    def _round_config(self, config: ConfigRecord, number: int) -> dict[str, Any]:
        """What the clients are told in this round, beside what differs between them."""
        name = type(self).__name__
        lr = config.get("lr") if self.lr is None else self.lr
        if not isinstance(lr, (int, float)) or isinstance(lr, bool):
            raise InputError(f"no learning rate; pass lr to {name}, or 'lr' in train_config")
        if self.lr is not None and config.get("lr", self.lr) != self.lr:
            raise InputError(f"lr is {self.lr:g} and train_config says {config['lr']}; drop one of the two")
        told: dict[str, Any] = {"rho": self.rho, "weight-decay": float(self.options.weight_decay)}
        told["clip-norm"] = float(self.options.clip_norm or 0.0)
        if self.local_steps is not None:
            told["local-steps"] = self.local_steps
        for key, value in told.items():
            if config.get(key, value) != value:
                raise InputError(
                    f"train_config says {key} {config[key]} and {name} {value}; set it in {name} alone"
                )
        rate = self.options.schedule.rate(float(lr), number, max(self._rounds, number))
        return dict(config) | told | {"server-round": number, "lr": rate}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the nodes of a round and write their messages."""
        if self.fraction_train == 0.0:
            return []
        run = self._run
        number = server_round + run.resumed
        run.take(to_numpy(arrays))
        told = self._round_config(config, number)
        nodes = self._sample(grid, number)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(nodes), run.connected)
        shared: dict[str, Any] = {ARRAYS: arrays}
        if self.rule:
            shared[VARIATE] = to_record(run.state.m)
        return [
            Message(
                RecordDict(shared | {CONFIG: ConfigRecord(told | self._for_node(node))}),
                node,
                MessageType.TRAIN,
            )
            for node in nodes
        ]

    def _for_node(self, node: int) -> dict[str, Any]:
        """What one client is told of its control variate."""
        return {"variate-rule": self.rule, **self._run.told(node)} if self.rule else {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies that came, and take the server's step.

        Nothing changes where a reply is refused. Without any reply theta stays and a warning says so.

        Raises:
            InputError: a reply cannot be averaged and `bad_replies` is `"raise"`, or clients do nothing but
                fail.
        """
        run, key = self._run, self.weighted_by_key
        number = server_round + run.resumed
        valid, errors = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        m, lenient = run.state.m if self.rule else None, self.options.bad_replies == "leave out"
        good, bad = countable(valid, run.state.theta, m, key, lenient)
        if not good:
            reasons = [f"node {e.metadata.src_node_id}: {reason_of(e)}" for e in errors]
            if reasons or bad:
                run.fail(number, reasons + bad)
            elif self.fraction_train:
                warnings.warn(
                    f"round {number} has no valid reply; the global model stays as it is", stacklevel=2
                )
                run.finish(replace(run.state, done=number))
            return None, None
        check_untied(run.twins, run.state.theta, model_of(good[0]))
        metrics = [metrics_of(reply) for reply in good]
        reported = self.train_metrics_aggr_fn([RecordDict({"metrics": record}) for record in metrics], key)
        weights = [float(record[key]) if self.options.weighted else 1.0 for record in metrics]  # ty: ignore[invalid-argument-type]
        mean = weighted_mean((model_of(reply) for reply in good), weights)
        theta = extrapolate(run.state.theta, mean, self.server_alpha, run.parameters)
        variate = run.state.m
        if self.rule:
            update = weighted_mean((to_numpy(reply.content.array_records[UPDATE]) for reply in good), weights)
            variate = self._next_variate(update, len(good))
        clients = max(run.state.clients, run.connected)
        run.finish(replace(run.state, done=number, theta=theta, m=variate, clients=clients), good)
        return to_record(theta), reported

    def _next_variate(self, update: dict[str, np.ndarray], participants: int) -> dict[str, np.ndarray]:
        """The server's control variate after a round: FedSWA has none, which stays as it is."""
        return self._run.state.m

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg, with the round's number counted over resumed runs."""
        return super().configure_evaluate(server_round + self._run.resumed, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As FedAvg, with a warning where every client failed."""
        valid, errors = self._check_and_log_replies(list(replies), is_train=False, validate=False)
        if errors and not valid:
            warnings.warn(
                f"no client could evaluate; the first said: {reason_of(errors[0])} "
                "(fraction_evaluate=0.0 asks for no evaluation)",
                stacklevel=2,
            )
        return super().aggregate_evaluate(server_round, valid)
