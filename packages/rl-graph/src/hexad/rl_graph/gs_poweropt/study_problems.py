"""The study's objectives, each for a batch of points (K, d), and the counter that all arms go through."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, "K d"]
Values = Float[np.ndarray, " K"]

SUNSPOTS_R2 = 0.42506
"""The best share of variance that two frequencies explain, by exhaustive search."""
HIT = SUNSPOTS_R2 - 5e-4
KAPPA = 1e-3
"""Margin, in log-probability, that an attack is content with."""


class SpentError(Exception):
    """The evaluations that an arm may make are made."""


@dataclass(frozen=True)
class Problem:
    """What an arm minimises.

    Attributes:
        values: of a batch of points.
        x0: where arms that need a start begin.
        lower, upper: box, or None where there is none.
    """

    name: str
    values: Callable[[Points], Values]
    x0: Float[np.ndarray, " d"]
    lower: Float[np.ndarray, " d"] | None = None
    upper: Float[np.ndarray, " d"] | None = None


@dataclass
class Counted:
    """A problem that counts: no arm gets a value beyond its budget, and each is judged by what it asked for.

    Attributes:
        best, x: the lowest value and where it was.
        used: evaluations made.
        norm, attack: norm of the smallest point at which an attack succeeded, and that point.
    """

    problem: Problem
    budget: int
    best: float = np.inf
    x: Float[np.ndarray, " d"] | None = None
    used: int = 0
    norm: float = np.inf
    attack: Float[np.ndarray, " d"] | None = field(default=None, repr=False)

    def rows(self, X: Points) -> Values:
        """Values of the points in the rows of `X`.

        Raises:
            SpentError: there were more of them than the budget had left; those within it are counted.
        """
        X = np.atleast_2d(np.asarray(X, dtype=np.float64))
        allowed = X[: self.budget - self.used]
        if not len(allowed):
            raise SpentError
        values = self.problem.values(allowed)
        self.used += len(allowed)
        lowest = int(np.argmin(values))
        if values[lowest] < self.best:
            self.best, self.x = float(values[lowest]), allowed[lowest].copy()
        if self.problem.name == "attack":
            norms = np.linalg.norm(allowed, axis=1)
            # The margin is what the loss has beside the norm.
            norms[values - norms >= 0] = np.inf
            smallest = int(np.argmin(norms))
            if norms[smallest] < self.norm:
                self.norm, self.attack = float(norms[smallest]), allowed[smallest].copy()
        if len(allowed) < len(X):
            raise SpentError
        return values

    def one(self, x: Float[np.ndarray, " d"]) -> float:
        """The value of one point."""
        return float(self.rows(np.asarray(x)[None])[0])


def two_log(X: Points) -> Values:
    """The paper's two peaks, as something to minimise: a sharp global one at -0.5, a blunt one at 0.5."""
    near, far = np.square(X + 0.5).sum(1), np.square(X - 0.5).sum(1)
    return np.log(near + 1e-5) + np.log(far + 1e-2)


def rastrigin(seed: int, d: int = 10) -> Problem:
    """Rastrigin's function, its optimum (value 0) moved by the seed."""
    rng = np.random.default_rng([seed, 1])
    width = 5.12
    centre = rng.uniform(-width / 2, width / 2, d)

    def values(X: Points) -> Values:
        Z = X - centre
        return 10 * d + (np.square(Z) - 10 * np.cos(2 * np.pi * Z)).sum(1)

    box = np.full(d, width)
    return Problem("rastrigin", values, rng.uniform(-width, width, d), -box, box)


def griewank(seed: int, d: int = 10) -> Problem:
    """Griewank's function, its optimum (value 0) moved by the seed."""
    rng = np.random.default_rng([seed, 2])
    width = 600.0
    centre = rng.uniform(-width / 2, width / 2, d)
    roots = np.sqrt(np.arange(1, d + 1))

    def values(X: Points) -> Values:
        Z = X - centre
        return 1 + np.square(Z).sum(1) / 4000 - np.cos(Z / roots).prod(1)

    box = np.full(d, width)
    return Problem("griewank", values, rng.uniform(-width, width, d), -box, box)


@functools.lru_cache(maxsize=1)
def _sunspots() -> tuple[Float[np.ndarray, " years"], Float[np.ndarray, " years"]]:
    """Centuries since 1700, and yearly sunspot numbers less their mean (statsmodels, public domain)."""
    from statsmodels.datasets import sunspots

    table = sunspots.load_pandas().data
    activity = table["SUNACTIVITY"].to_numpy(dtype=np.float64)
    return (table["YEAR"].to_numpy(dtype=np.float64) - 1700) / 100, activity - activity.mean()


def unexplained(X: Points) -> Values:
    """1 - R^2 of yearly sunspots on a constant and two sinusoids, of frequencies X in cycles a century."""
    t, y = _sunspots()
    angles = 2 * np.pi * X[:, :, None] * t
    ones = np.ones((len(X), 1, len(t)))
    design = np.concatenate([ones, np.cos(angles), np.sin(angles)], axis=1)  # (K, 5, years)
    gram = design @ design.transpose(0, 2, 1)
    # A trace of ridge, where both frequencies are one.
    gram += 1e-9 * len(t) * np.eye(5)
    moments = design @ y
    explained = (moments * np.linalg.solve(gram, moments[..., None])[..., 0]).sum(1)
    return 1 - explained / (y @ y)


def sunspots(seed: int) -> Problem:
    """Which two frequencies explain the yearly sunspots best? Each pair of peaks is a local optimum."""
    rng = np.random.default_rng([seed, 3])
    lower, upper = np.full(2, 1.0), np.full(2, 49.0)
    return Problem("sunspots", unexplained, rng.uniform(lower, upper), lower, upper)


@dataclass(frozen=True)
class Network:
    """A fitted classifier of digits and test images that it names rightly.

    Attributes:
        weights, biases: of its layers.
        accuracy: on all test images.
        images: (n, 64), in [0, 1].
        targets: the class that each image is the least likely to be.
    """

    weights: list[Float[np.ndarray, "i o"]]
    biases: list[Float[np.ndarray, " o"]]
    accuracy: float
    images: Float[np.ndarray, "n 64"]
    targets: Any

    def logits(self, X: Float[np.ndarray, "K 64"]) -> Float[np.ndarray, "K 10"]:
        """Log-probabilities up to a constant a row; what scikit-learn computes, without its checks."""
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            X = X @ weight + bias
            if place < len(self.weights) - 1:
                X = np.maximum(X, 0)
        return X


@functools.lru_cache(maxsize=4)
def fitted_network(seed: int, count: int) -> Network:
    """An MLP (64, 32) on scikit-learn's 1797 digits (UCI, CC BY 4.0), a quarter held out by the seed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    X, y = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X / 16, y, stratify=y, random_state=seed)
    model = MLPClassifier((64, 32), max_iter=400, random_state=seed).fit(train, y_train)
    right = test[model.predict(test) == y_test]
    images = right[np.random.default_rng([seed, 4]).permutation(len(right))[:count]]
    targets = model.predict_proba(images).argmin(1)
    return Network(model.coefs_, model.intercepts_, float(model.score(test, y_test)), images, targets)


def attack(seed: int, place: int, count: int) -> Problem:
    """Change an image as little as possible so that the classifier takes it for its least likely class.

    The paper's loss with c = 1: max(max_{j != t} z_j - z_t, -kappa) + ||delta||_2, from delta = 0.
    """
    network = fitted_network(seed, count)
    image, target = network.images[place], int(network.targets[place])

    def values(delta: Float[np.ndarray, "K 64"]) -> Values:
        logits = network.logits(image + delta)
        wanted = logits[:, target].copy()
        logits[:, target] = -np.inf
        return np.maximum(logits.max(1) - wanted, -KAPPA) + np.linalg.norm(delta, axis=1)

    return Problem("attack", values, np.zeros(image.size))


FITS: dict[str, Callable[[int], Problem]] = {
    "sunspots": sunspots,
    "rastrigin": rastrigin,
    "griewank": griewank,
}
