"""Data shared out among clients: all of it, none twice, as unevenly as asked."""

import subprocess
import sys

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.fedswa import partition_labels

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def entropy(parts):
    """Mean entropy of the clients' labels, in nats; ln 10 is that of even ones."""
    values = []
    for part in parts:
        share = np.bincount(LABELS[part], minlength=10) / len(part)
        values.append(-(share[share > 0] * np.log(share[share > 0])).sum())
    return np.mean(values)


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid"])
def test_every_example_has_one_client(kind):
    parts = partition_labels(LABELS, 20, kind, alpha=0.3, seed=1)
    assert len(parts) == 20
    assert sorted(np.concatenate(parts)) == list(range(2000))
    again = partition_labels(LABELS, 20, kind, alpha=0.3, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = partition_labels(LABELS, 20, kind, alpha=0.3, seed=2)
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_alpha_says_how_much_clients_differ():
    spread = [entropy(partition_labels(LABELS, 20, alpha=alpha)) for alpha in (0.1, 1.0, 100.0)]
    assert spread[0] < spread[1] - 0.3
    assert spread[1] < spread[2] - 0.3
    assert spread[2] > 0.95 * np.log(10)
    assert entropy(partition_labels(LABELS, 20, "iid")) > 0.95 * np.log(10)


def test_pathological_clients_have_few_classes():
    parts = partition_labels(LABELS, 20, "pathological", classes_per_client=3)
    assert all(len(np.unique(LABELS[part])) <= 3 for part in parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"clients": 3000}, "3000 clients for 2000 examples"),
        ({"kind": "shards"}, "unknown partition 'shards'"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"smallest": 99}, "cannot be shared out so"),
        ({"kind": "pathological", "classes_per_client": 11}, "cannot be shared out so"),
        ({"labels": np.zeros((4, 2), int)}, r"labels of shape \(4, 2\)"),
    ],
)
def test_bad_partitions_are_refused(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        partition_labels(**{"labels": LABELS, "clients": 20, **arguments})
    assert "\n" not in str(caught.value)


def test_without_flower_the_mathematics_work_and_the_rest_says_what_to_install():
    code = (
        "import sys\n"
        "for name in ('flwr', 'flwr_datasets', 'datasets', 'ray'): sys.modules[name] = None\n"
        "from hexad.core.errors import MissingExtraError\n"
        "import numpy as np, torch\n"
        "from hexad.federated.fedswa import LocalConfig, cyclic_lrs, extrapolate, local_train\n"
        "model = torch.nn.Linear(2, 2)\n"
        "batch = (torch.ones(3, 2), torch.tensor([0, 1, 0]))\n"
        "assert local_train(model, [batch], LocalConfig(0.1, 2)).steps == 2\n"
        "from hexad.federated.fedswa.quadratics import Descent, descend, draw_quadratics\n"
        "assert descend(draw_quadratics(3, 2, 0), Descent(), 2, 5).theta.shape == (5, 2)\n"
        "import hexad.federated.fedswa as package\n"
        "for name in ('FedSWA', 'FedMoSWA', 'Scaffold', 'control_variate_mod', 'cyclic_sgd'):\n"
        "    try:\n        getattr(package, name)\n"
        "    except MissingExtraError as error:\n        print(error)\n"
        "try:\n    package.partition_labels(np.zeros(4), 2)\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all('pip install "hexad-federated[flower]"' in line for line in lines)
