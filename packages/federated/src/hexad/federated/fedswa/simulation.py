"""A federation in this process: the Flower app of `app/` on packaged digits, resumable, with its history."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
import json
import logging
import random
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from hexad.core.errors import InputError
from hexad.core.files import writable_folder, write_json
from hexad.core.validation import check_choice, check_count, check_range
from hexad.federated.fedswa.app.client_app import app as client_app
from hexad.federated.fedswa.app.server_app import run
from hexad.federated.fedswa.app.task import load_data, places_of
from hexad.federated.fedswa.optimizer import LocalConfig
from hexad.federated.fedswa.partitions import Kind
from hexad.federated.fedswa.replies import to_numpy
from hexad.federated.fedswa.schedule import Course, RoundSchedule
from hexad.federated.flower import InProcessGrid

StrategyName = Literal["fedavg", "fedsam", "fedswa", "fedmoswa", "scaffold"]


@dataclass(frozen=True)
class Simulation:
    """A run: the strategy, the clients and their data, the rounds.

    Args:
        strategy: `"fedavg"` weighs clients by their examples, the others weigh them alike.
        clients: how many.
        fraction: share of them that trains in a round.
        partition: how the digits are shared out, see `partition_labels`.
        alpha: of the Dirichlet distribution.
        classes_per_client: of the pathological partition.
        rounds: in all.
        local_steps: K of each client and round.
        batch_size: digits a step.
        lr: eta_l.
        course: of the rate over rounds.
        rho: of FedSWA and FedMoSWA.
        server_alpha: of the same.
        gamma: of FedMoSWA.
        weight_decay: of the clients.
        sam_radius: of FedSAM, which needs one above 0; may be set with the others too.
        lost: share of replies that never arrive.
        evaluate_every: rounds between tests.
        seed: of data, partition, first weights, choice of clients, order of batches, lost replies.

    Raises:
        InputError: a value is out of range, or FedSAM has no radius.
    """

    strategy: StrategyName = "fedmoswa"
    clients: int = 100
    fraction: float = 0.1
    partition: Kind = "dirichlet"
    alpha: float = 0.1
    classes_per_client: int = 2
    rounds: int = 30
    local_steps: int = 20
    batch_size: int = 32
    lr: float = 0.1
    course: Course = "constant"
    rho: float = 0.1
    server_alpha: float = 1.5
    gamma: float = 0.2
    weight_decay: float = 1e-3
    sam_radius: float = 0.0
    lost: float = 0.0
    evaluate_every: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, get_args(StrategyName))
        check_choice("partition", self.partition, get_args(Kind))
        check_count("clients", self.clients, 2)
        for name in ("classes_per_client", "rounds", "batch_size", "evaluate_every"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, 0)
        check_range("fraction", self.fraction, 0, 1, low_open=True)
        check_range("alpha", self.alpha, 0, low_open=True)
        check_range("server_alpha", self.server_alpha, 0, low_open=True)
        check_range("gamma", self.gamma, 0, 1)
        check_range("lost", self.lost, 0, 1)
        RoundSchedule(self.course)
        LocalConfig(self.lr, self.local_steps, self.rho, self.weight_decay, sam_radius=self.sam_radius)
        if self.strategy == "fedsam" and not self.sam_radius:
            raise InputError("fedsam needs a sam_radius above 0; 0.05 is usual")

    def run_config(self, folder: Path | None = None) -> dict[str, Any]:
        """The configuration of the Flower app, its state below `folder`."""
        names = {"fraction": "fraction-train"}
        own = {names.get(name, name.replace("_", "-")): value for name, value in vars(self).items()}
        own |= {"lr": float(self.lr), "alpha": float(self.alpha)}
        places = {"checkpoints": "checkpoints", "variates-folder": "variates"}
        state = {key: "" if folder is None else str(folder / name) for key, name in places.items()}
        return {key: value for key, value in own.items() if key not in ("clients", "lost")} | state


@dataclass(frozen=True)
class Run:
    """What a simulation gave.

    Attributes:
        history: a row for each tested round: round, accuracy, loss (of the server's digits), megabytes (of
            arrays sent and received so far, as Flower serialises them).
        arrays: the global model at the end, by name.
        failures: clients that raised, with what.
    """

    history: list[dict[str, float]]
    arrays: dict[str, np.ndarray]
    failures: list[str]

    def accuracy(self, last: int = 4) -> float:
        """Mean accuracy of the last tests after the first round: one alone is noisy where few take part."""
        trained = [row for row in self.history if row["round"]] or self.history
        return float(np.mean([row["accuracy"] for row in trained[-last:]]))


def simulate(
    simulation: Simulation,
    folder: str | Path | None = None,
    *,
    progress: Callable[[float, str], None] | None = None,
    tested: Callable[[dict[str, float]], None] | None = None,
) -> Run:
    """Run a federation in this process, or go on with one that was interrupted.

    Args:
        simulation: what to run.
        folder: gets checkpoints of the server, the clients' control variates and history.json; the same call
            goes on from there and ends as if it had never stopped. None keeps nothing.
        progress: told the share done and a few words after each round.
        tested: told each new row of the history.

    Raises:
        InputError: a folder that holds another run or one that is running, a damaged history, more clients
            than digits, replies that are not finite, clients that all fail.
    """
    place = None if folder is None else writable_folder(folder, "folder of the run")
    config = simulation.run_config(place)
    places_of(config, simulation.clients)  # a partition that cannot be drawn is refused before all else
    stored = _read_history(place, simulation)
    now = {"round": 0}
    chance = random.Random()

    def loses(reply: Message) -> bool:
        chance.seed(f"{simulation.seed}-{now['round'] + 1}-{reply.metadata.src_node_id}")
        return chance.random() < simulation.lost

    grid = InProcessGrid(client_app, simulation.clients, run_config=config, loses_reply=loses)
    history: list[dict[str, float]] = []
    before = {"megabytes": 0.0}

    def watch(number: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        if not history:  # the first call says which round the run goes on from
            if number and not stored["done"]:
                warnings.warn(
                    f"{place} has checkpoints and no history.json; history and traffic begin at round "
                    f"{number}",
                    stacklevel=2,
                )
            history.extend(row for row in stored["rows"] if row["round"] < number)
            # Every round sends as much, and the file may be a round behind the checkpoint.
            before["megabytes"] = stored["megabytes"] * number / max(stored["done"], 1)
        now["round"] = number
        traffic = round(before["megabytes"] + (grid.sent + grid.received) / 1e6, 6)
        if metrics is not None:
            values: Any = dict(metrics)
            history.append({"round": number, **values, "megabytes": traffic})
        if place is not None:
            content = {"simulation": vars(simulation), "done": number, "megabytes": traffic, "rows": history}
            write_json(place / "history.json", content)
        if metrics is not None and tested is not None:
            tested(history[-1])
        if progress is not None:
            last = f", accuracy {history[-1]['accuracy']:.4f}" if history else ""
            progress(number / simulation.rounds, f"round {number}{last}")

    with quiet_flower():
        result = run(grid, config, watch)
    failures = [
        f"client {grid.contexts[node].node_config['partition-id']}: {error}" for node, error in grid.failures
    ]
    return Run(history, to_numpy(result.arrays), failures)


def _read_history(place: Path | None, simulation: Simulation) -> dict[str, Any]:
    """What an earlier run of the same kind wrote; a longer run may go on from a shorter one."""
    path = None if place is None else place / "history.json"
    if path is None or not path.is_file():
        return {"done": 0, "megabytes": 0.0, "rows": []}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = {}
    if not _is_history(content):
        raise InputError(
            f"{path} is damaged; delete it to go on from the checkpoints with a history that begins there, "
            "or name another folder"
        )
    free = {"rounds"} if simulation.course != "cosine" else set()
    changed = {
        name: f"{name} {content['simulation'].get(name)!s:.40} -> {value!s:.40}"
        for name, value in vars(simulation).items()
        if content["simulation"].get(name) != value and name not in free
    }
    if changed:
        raise InputError(
            f"{place} holds a run with other settings ({'; '.join(changed.values())}); name another folder"
        )
    return content


def _is_history(content: Any) -> bool:
    kinds: dict[str, Any] = {"simulation": dict, "done": int, "megabytes": (int, float), "rows": list}
    return (
        isinstance(content, dict)
        and all(isinstance(content.get(name), kind) for name, kind in kinds.items())
        and all(
            isinstance(row, dict)
            and all(
                isinstance(row.get(name), (int, float)) for name in ("round", "accuracy", "loss", "megabytes")
            )
            for row in content["rows"]
        )
    )


@contextmanager
def quiet_flower() -> Generator[None]:
    """Keep Flower's own log to warnings."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def label_counts(simulation: Simulation) -> np.ndarray:
    """How many digits of each class each client has, as (clients, 10)."""
    labels = load_data(simulation.seed)[1].numpy()
    places = places_of(simulation.run_config(), simulation.clients)
    return np.stack([np.bincount(labels[share], minlength=10) for share in places])
