"""Clients with quadratic losses of their own, where the true optimum and all fixed points are known.

f_i(x) = (x - b_i)' H_i (x - b_i) / 2. Without noise in the gradients, what an algorithm ends at shows its
bias from the clients' drift. All clients of a round take their steps at once, as rows of one array; the rules
are those of `averaging`, `variates` and `schedule`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from hexad.core.validation import check_choice, check_count, check_range
from hexad.federated.fedswa.averaging import extrapolate, update_momentum, update_scaffold
from hexad.federated.fedswa.schedule import cyclic_lrs
from hexad.federated.fedswa.variates import correction, next_variate

Variates = Literal["none", "momentum", "scaffold"]


@dataclass(frozen=True)
class Quadratics:
    """The losses of all clients.

    Attributes:
        hessians: H_i, symmetric and positive.
        centres: b_i, the client's own optimum.
    """

    hessians: Float[np.ndarray, "clients d d"]
    centres: Float[np.ndarray, "clients d"]

    @property
    def optimum(self) -> Float[np.ndarray, " d"]:
        """Where the mean of all losses is smallest."""
        pull = np.einsum("nij,nj->i", self.hessians, self.centres)
        return np.linalg.solve(self.hessians.sum(0), pull)

    def gradients(
        self, points: Float[np.ndarray, "s d"], chosen: np.ndarray | slice = slice(None)
    ) -> Float[np.ndarray, "s d"]:
        """H_i (x_i - b_i) of the chosen clients, each at its own point."""
        return np.einsum("nij,nj->ni", self.hessians[chosen], points - self.centres[chosen])

    def fixed_point(self, rates: list[float]) -> Float[np.ndarray, " d"]:
        """Where FedAvg and FedSWA stand still when all clients take part: a round is an affine map.

        With P_i = product of (I - eta_k H_i) it is (I - mean P_i)^-1 mean (I - P_i) b_i, whatever alpha is.
        """
        eye = np.eye(self.centres.shape[1])
        maps = np.broadcast_to(eye, self.hessians.shape)
        for rate in rates:
            maps = (eye - rate * self.hessians) @ maps
        moved = np.einsum("nij,nj->ni", eye - maps, self.centres)
        return np.linalg.solve(eye - maps.mean(0), moved.mean(0))


def draw_quadratics(clients: int, dimensions: int, seed: int) -> Quadratics:
    """Hessians with eigenvalues uniform in [0.2, 2] and random axes; centres normal with deviation 3."""
    generator = np.random.default_rng(seed)
    axes = np.linalg.qr(generator.normal(size=(clients, dimensions, dimensions)))[0]
    values = generator.uniform(0.2, 2.0, (clients, dimensions))
    hessians = np.einsum("nij,nj,nkj->nik", axes, values, axes)
    return Quadratics(hessians, generator.normal(scale=3.0, size=(clients, dimensions)))


@dataclass(frozen=True)
class Descent:
    """An algorithm on quadratics: FedAvg with the defaults.

    Args:
        variates: `"momentum"` is FedMoSWA's m, `"scaffold"` SCAFFOLD's c.
        rho: of the cycle.
        server_alpha: of the server's step.
        gamma: of the momentum.
        sam_radius: of FedSAM.
        lr: eta_l.
        steps: K.

    Raises:
        InputError: a value is out of range.
    """

    variates: Variates = "none"
    rho: float = 1.0
    server_alpha: float = 1.0
    gamma: float = 0.2
    sam_radius: float = 0.0
    lr: float = 0.05
    steps: int = 10

    def __post_init__(self) -> None:
        check_choice("variates", self.variates, get_args(Variates))
        check_range("server_alpha", self.server_alpha, 0, low_open=True)
        check_range("gamma", self.gamma, 0, 1)
        check_range("sam_radius", self.sam_radius, 0)
        cyclic_lrs(self.lr, self.steps, self.rho)


@dataclass(frozen=True)
class Path:
    """What a descent did.

    Attributes:
        theta: the server's point after each round.
        m: the server's control variate at the end.
        c: the clients' control variates at the end.
    """

    theta: Float[np.ndarray, "rounds d"]
    m: Float[np.ndarray, " d"]
    c: Float[np.ndarray, "clients d"]

    def distance(self, point: Float[np.ndarray, " d"]) -> float:
        """Root mean square distance to a point over the last half of the rounds."""
        last = self.theta[len(self.theta) // 2 :]
        return float(np.sqrt(((last - point) ** 2).sum(1).mean()))


def descend(problem: Quadratics, descent: Descent, participants: int, rounds: int, seed: int = 0) -> Path:
    """Run an algorithm from the origin.

    Args:
        problem: the clients' losses.
        descent: the algorithm.
        participants: s, drawn anew in each round.
        rounds: how many.
        seed: of the draws.

    Raises:
        InputError: more participants than clients.
    """
    clients, dimensions = problem.centres.shape
    check_range("participants", check_count("participants", participants), 1, clients)
    check_count("rounds", rounds)
    generator = np.random.default_rng(seed)
    rates = cyclic_lrs(descent.lr, descent.steps, descent.rho)
    theta = {"x": np.zeros(dimensions)}
    m, c = {"x": np.zeros(dimensions)}, np.zeros((clients, dimensions))
    path = np.empty((rounds, dimensions))
    for number in range(rounds):
        chosen = generator.permutation(clients)[:participants]
        sent = {"x": np.broadcast_to(m["x"], (participants, dimensions))}
        shift = correction(sent, {"x": c[chosen]})["x"] if descent.variates != "none" else 0.0
        points = np.broadcast_to(theta["x"], (participants, dimensions))
        for rate in rates:
            slopes = problem.gradients(points, chosen)
            if descent.sam_radius:
                norms = np.linalg.norm(slopes, axis=1, keepdims=True)
                slopes = problem.gradients(points + descent.sam_radius * slopes / (norms + 1e-12), chosen)
            points = points - rate * (slopes + shift)
        if descent.variates != "none":
            delta = {"x": points - theta["x"]}
            fresh = next_variate({"x": c[chosen]}, sent, delta, sum(rates))["x"]
            if descent.variates == "momentum":
                m = update_momentum(m, {"x": (fresh - m["x"]).mean(0)}, descent.gamma)
            else:
                m = update_scaffold(m, {"x": (fresh - c[chosen]).mean(0)}, participants, clients)
            c[chosen] = fresh
        theta = extrapolate(theta, {"x": points.mean(0)}, descent.server_alpha, ["x"])
        path[number] = theta["x"]
    return Path(path, m["x"], c)
