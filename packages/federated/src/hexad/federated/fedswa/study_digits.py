"""The study's measurements: handwritten digits on clients that differ, and quadratics."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from hexad.core.files import write_json
from hexad.core.studies import Measurement, Trial
from hexad.federated.fedswa.app.task import load_data, make_model
from hexad.federated.fedswa.quadratics import descend, draw_quadratics
from hexad.federated.fedswa.sharpness import flatness, top_hessian_eigenvalue
from hexad.federated.fedswa.simulation import Run, Simulation, simulate
from hexad.federated.fedswa.study_arms import RATES, VARIANTS

TESTS = 4
"""Accuracy is the mean of so many last tests."""

QUADRATIC_CLIENTS, DIMENSIONS = 20, 6

RADIUS = 0.5
"""Of the flatness probe: a tenth moved the loss by a thousandth, in either direction."""


@dataclass(frozen=True)
class Config:
    """Sizes of the study.

    Args:
        partitions: Dirichlet alphas as text, or `"iid"`.
        clients: how many share the 4000 digits.
        fraction: of them that trains in a round.
        rounds: of the digits.
        local_steps: K.
        every: rounds between tests.
        draws: directions of the flatness probe.
        participants: of 20 clients with quadratic losses.
        quadratic_rounds: of those.
        rates: tried instead of the arm's own, in the sweep.
        first_seed: added to the seed.
    """

    partitions: tuple[str, ...] = ("0.1", "0.6", "iid")
    clients: int = 100
    fraction: float = 0.1
    rounds: int = 80
    local_steps: int = 20
    every: int = 5
    draws: int = 20
    participants: tuple[int, ...] = (20, 10, 5, 2)
    quadratic_rounds: int = 1000
    rates: tuple[float, ...] = ()
    first_seed: int = 0


def measure_quadratics(trial: Trial, name: str) -> Iterator[Measurement]:
    """Distance to the optimum over the last half of the rounds, without noise, for each participation."""
    config: Config = trial.config
    seed = config.first_seed + trial.seed
    problem = draw_quadratics(QUADRATIC_CLIENTS, DIMENSIONS, seed)
    for participants in config.participants:
        path = descend(problem, VARIANTS[name].descent, participants, config.quadratic_rounds, seed)
        yield Measurement("distance", path.distance(problem.optimum), f"s={participants}")


def measure_digits(trial: Trial, name: str) -> Iterator[Measurement]:
    """Train on every partition and test; with `rates`, at each of those instead of the arm's own."""
    config: Config = trial.config
    variant = VARIANTS[name]
    partitions = config.partitions if variant.everywhere else config.partitions[:1]
    runs = [(part, rate) for part in partitions for rate in config.rates or (RATES[name],)]
    for place, (part, rate) in enumerate(runs):
        case = f"{part}/{rate:g}" if config.rates else part

        def tell(fraction: float, note: str, place: int = place, case: str = case) -> None:
            trial.progress((place + fraction) / len(runs), f"{case}: {note}")

        simulation = _simulation(config, variant.simulation, part, rate, trial.seed)
        run = simulate(simulation, progress=tell)
        write_json(trial.folder / f"history-{case.replace('/', '-')}.json", run.history)
        yield Measurement("accuracy", run.accuracy(TESTS), case)
        if not config.rates:
            yield from _measure_run(config, simulation, run, variant.doubled, case)


def _simulation(config: Config, own: dict[str, Any], part: str, rate: float, seed: int) -> Simulation:
    shared = Simulation(
        clients=config.clients,
        fraction=config.fraction,
        partition="iid" if part == "iid" else "dirichlet",
        alpha=1.0 if part == "iid" else float(part),
        rounds=config.rounds,
        local_steps=config.local_steps,
        evaluate_every=config.every,
        lr=rate,
        seed=config.first_seed + seed,
    )
    return replace(shared, **own)


def _measure_run(
    config: Config, simulation: Simulation, run: Run, doubled: bool, case: str
) -> Iterator[Measurement]:
    # What FedAvg and its like send in all rounds, methods with variates send in half of them.
    budget = run.history[-1]["megabytes"] / (2 if doubled else 1)
    within = [row for row in run.history if row["megabytes"] <= budget * (1 + 1e-9)]
    yield Measurement("accuracy_traffic", Run(within, {}, []).accuracy(TESTS), case)
    yield Measurement("megabytes", run.history[-1]["megabytes"], case)
    model = make_model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in run.arrays.items()})
    inputs, classes, _, _ = load_data(simulation.seed)

    def loss(network: torch.nn.Module) -> torch.Tensor:
        return functional.cross_entropy(network(inputs), classes)

    with torch.no_grad():
        yield Measurement("train_loss", float(loss(model)), case)
    yield Measurement("eigenvalue", top_hessian_eigenvalue(model, loss), case)
    yield Measurement("rise", flatness(model, loss, radius=RADIUS, draws=config.draws), case)
