"""Small data sets whose answers are known."""

import numpy as np

from hexad.rl_graph.gas.agent import GASConfig
from hexad.rl_graph.gas.fitting import FitConfig
from hexad.rl_graph.gas.policy import PolicyConfig
from hexad.rl_graph.gas.temporal import TemporalConfig
from hexad.rl_graph.gas.trajectories import Trajectories

TINY_FIT = FitConfig(steps=3, batch_size=16, learning_rate=1e-3, checkpoint_every=2, accelerator="cpu")


def line(lengths=(12, 9), dim=2, seed=0) -> Trajectories:
    """Trajectories of that many states along a line, with small noise."""
    rng = np.random.default_rng(seed)
    states, terminals = [], []
    for length in lengths:
        start = rng.uniform(-5, 5, dim)
        states.append(
            start + np.arange(length)[:, None] * np.ones(dim) * 0.2 + rng.normal(0, 0.01, (length, dim))
        )
        terminals += [False] * (length - 1) + [True]
    actions = rng.uniform(-1, 1, (len(terminals), dim))
    return Trajectories(np.concatenate(states), actions, np.array(terminals), "line")


def tiny_config(horizon=0.5, te_threshold=-1.0, steps=3) -> GASConfig:
    """Networks of 8 numbers and three steps: what comes out is nonsense, but it is an agent."""
    fit = FitConfig(steps=steps, batch_size=16, learning_rate=1e-3, checkpoint_every=2, accelerator="cpu")
    return GASConfig(
        TemporalConfig(latent_dim=4, hidden=(8, 8), fit=fit), PolicyConfig(hidden=(8, 8), fit=fit),
        horizon, te_threshold,
    )  # fmt: skip
