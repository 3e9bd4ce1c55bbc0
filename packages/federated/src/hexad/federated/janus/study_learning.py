"""A small federated training on handwritten digits: updates are summed in the clear, or by Janus."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from hexad.core.data import load_handwritten_digits
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.rounds import make_session

LENGTH = 784 * 10 + 10
"""Weights and biases: 7850."""

TEST = 1000
RATE, BATCH = 0.3, 32

Summing = Callable[[dict[str, np.ndarray], dict[str, int]], np.ndarray]
"""`(updates, weights) -> weighted mean` of the clients that are present."""


@functools.cache
def _digits() -> tuple[Float[np.ndarray, "5000 784"], Int[np.ndarray, " 5000"]]:
    images, labels = load_handwritten_digits()
    return images.reshape(len(images), -1).astype(np.float64) / 255, labels.astype(np.int64)


def _softmax(model: Float[np.ndarray, " length"], x: Float[np.ndarray, "n 784"]) -> Float[np.ndarray, "n 10"]:
    scores = x @ model[:7840].reshape(784, 10) + model[7840:]
    scores -= scores.max(1, keepdims=True)
    odds = np.exp(scores)
    return odds / odds.sum(1, keepdims=True)


def train_locally(
    model: Float[np.ndarray, " length"],
    x: Float[np.ndarray, "n 784"],
    y: Int[np.ndarray, " n"],
    epochs: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " length"]:
    """The update of some epochs of stochastic gradient descent."""
    moved = model.copy()
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(y)), max(1, len(y) // BATCH)):
            errors = _softmax(moved, x[rows])
            errors[np.arange(len(rows)), y[rows]] -= 1
            errors /= len(rows)
            moved[:7840] -= RATE * (x[rows].T @ errors).reshape(-1)
            moved[7840:] -= RATE * errors.sum(0)
    return moved - model


def shares_of(n: int, rng: np.random.Generator) -> list[Int[np.ndarray, " part"]]:
    """Rows of the training digits for n clients, of unlike sizes and mixtures of digits (Dirichlet, 0.5)."""
    _, labels = _digits()
    rows = rng.permutation(len(labels))[TEST:]
    mixtures = rng.dirichlet(np.full(n, 0.5), size=10)
    owner = np.array([rng.choice(n, p=mixtures[label]) for label in labels[rows]])
    # Nobody is left without a row.
    owner[:n] = np.arange(n)
    return [rows[owner == client] for client in range(n)]


def accuracy_of(n: int, rounds: int, epochs: int, dropout: float, seed: int, mean_of: Summing) -> float:
    """Accuracy on held-out digits after some rounds, of which in each a share of the clients drops out."""
    x, y = _digits()
    rng = np.random.default_rng(seed)
    test = np.random.default_rng(seed).permutation(len(y))[:TEST]
    shares = shares_of(n, np.random.default_rng(seed))
    model = np.zeros(LENGTH)
    for _ in range(rounds):
        present = sorted(rng.choice(n, n - round(dropout * n), replace=False).tolist())
        seeds = rng.integers(1 << 60, size=n)
        updates = {
            f"c{k}": train_locally(model, x[shares[k]], y[shares[k]], epochs, np.random.default_rng(seeds[k]))
            for k in present
        }
        model = model + mean_of(updates, {f"c{k}": len(shares[k]) for k in present})
    return float((_softmax(model, x[test]).argmax(1) == y[test]).mean())


def plain_mean(updates: dict[str, np.ndarray], weights: dict[str, int]) -> np.ndarray:
    """FedAvg in floats."""
    names = list(updates)
    return np.average([updates[name] for name in names], axis=0, weights=[weights[name] for name in names])


def janus_accuracy(n: int, rounds: int, epochs: int, dropout: float, seed: int, folder: Path) -> float:
    """The same training, with the means that one client verifies."""
    config = JanusConfig(length=LENGTH, clip=4.0)
    session = make_session([f"c{k}" for k in range(n)], config, folder, rounding_seed=seed)

    def mean_of(updates: dict[str, np.ndarray], weights: dict[str, int]) -> np.ndarray:
        number = session.s0.round + 1
        messages = {
            name: session.clients[name].protect(update, weights[name], number)
            for name, update in updates.items()
        }
        session.exchange(messages, number)
        # All clients get the same mean; one of them is enough here.
        client = session.clients["c0"]
        return client.verify_and_unmask(session.s0.reply("c0"), session.s1.reply("c0"), number).mean

    try:
        return accuracy_of(n, rounds, epochs, dropout, seed, mean_of)
    finally:
        session.release()
