"""The part to make your own: the model, each client's data, and how the server tests.

Here: a small network on 5000 handwritten digits, shared out among the clients by their labels.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.data import load_handwritten_digits
from hexad.federated.fedswa import partition_labels

TESTED = 1000
"""Digits that the server tests on and no client has."""


def make_model(seed: int = 0) -> nn.Module:
    """A network of 784, 64 and 10 neurons."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


@functools.lru_cache(maxsize=2)
def load_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n, 28, 28) and labels to train on, then those to test on."""
    images, labels = load_handwritten_digits()
    order = np.random.default_rng(seed).permutation(len(labels))
    inputs = torch.from_numpy(images[order]).float().div(255)
    classes = torch.from_numpy(labels[order])
    return inputs[TESTED:], classes[TESTED:], inputs[:TESTED], classes[:TESTED]


@functools.lru_cache(maxsize=2)
def share_out(clients: int, kind: Any, alpha: float, classes: int, seed: int) -> list[np.ndarray]:
    """Which of the training digits each client has."""
    labels = load_data(seed)[1].numpy()
    return partition_labels(labels, clients, kind, alpha=alpha, classes_per_client=classes, seed=seed)


def places_of(config: Mapping[str, Any], clients: int) -> list[np.ndarray]:
    """The same, from a run's configuration."""
    return share_out(
        clients, config["partition"], config["alpha"], config["classes-per-client"], config["seed"]
    )


class Batches:
    """A client's batches, in a new order at each pass; the same seed gives the same orders."""

    def __init__(self, inputs: Tensor, classes: Tensor, size: int, seed: list[int]) -> None:
        self.inputs, self.classes, self.size = inputs, classes, size
        self.generator = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.from_numpy(self.generator.permutation(len(self.classes)))
        for places in order.split(self.size):
            yield self.inputs[places], self.classes[places]


def client_batches(context: Context, number: int) -> Batches:
    """The batches of one client in one round."""
    config: Any = context.run_config
    part, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    inputs, classes, _, _ = load_data(config["seed"])
    places = torch.from_numpy(places_of(config, clients)[part])
    seed = [config["seed"], part, number]
    return Batches(inputs[places], classes[places], config["batch-size"], seed)


def score(arrays: ArrayRecord, seed: int) -> MetricRecord:
    """Accuracy and loss of the global model on the server's digits."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    model.eval()
    _, _, inputs, classes = load_data(seed)
    with torch.no_grad():
        scores = model(inputs)
    metrics = MetricRecord()
    metrics["accuracy"] = float((scores.argmax(1) == classes).double().mean())
    metrics["loss"] = float(functional.cross_entropy(scores, classes))
    return metrics
