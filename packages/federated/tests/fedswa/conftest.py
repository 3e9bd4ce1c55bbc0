"""A small federation: a network with batch norm, and six clients with data of their own."""

import numpy as np
import pytest
import torch
from torch import nn

from hexad.federated.fedswa.client import make_client_app
from hexad.federated.flower import InProcessGrid

CLIENTS = 6


def make_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def make_linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def client_batches(part, number, steps=3):
    """Batches of client `part` in round `number`: its classes and inputs are its own."""
    generator = torch.Generator().manual_seed(1000 * part + number)
    return [
        (
            torch.randn(8, 4, generator=generator) + part / 2,
            torch.randint(1 + part % 3, (8,), generator=generator),
        )
        for _ in range(steps)
    ]


@pytest.fixture
def federation():
    """`federation(**options)` gives an InProcessGrid of six clients."""

    def make(network=make_network, clients=CLIENTS, loses_reply=None, **options):
        app = make_client_app(
            network,
            lambda context, number: client_batches(context.node_config["partition-id"], number),
            **options,
        )
        return InProcessGrid(app, clients, loses_reply=loses_reply)

    return make


def numpy_of(record):
    return {name: np.asarray(array.numpy()) for name, array in record.items()}
