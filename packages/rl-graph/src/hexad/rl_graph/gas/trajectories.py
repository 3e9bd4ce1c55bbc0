"""Reward-free trajectories held in memory: states one after the other, and where each trajectory ends."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from hexad.core.errors import InputError

LOST = 1e-4
"""float64 observations stay so if in float32 a number of them would lose more than this of its deviation."""
STEADY = 1e-9
"""float64 numbers that deviate by less than this share of their size do not vary: they jitter."""
SLACK = 1e-5
"""Actions may pass [-1, 1] by this much, which is the rounding of float32."""


def is_real(array: np.ndarray) -> bool:
    """Whether an array holds integers or floating-point numbers."""
    return np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)


def _blurred(
    observations: Float[np.ndarray, "states obs_dim"], rounded: Float[np.ndarray, "states obs_dim"]
) -> bool:
    """Whether a number of the observations loses more of its variation by rounding than `LOST`."""
    if observations.dtype.itemsize <= 4 and np.issubdtype(observations.dtype, np.floating):
        return False
    for column, short in zip(observations.T, rounded.T, strict=True):
        exact = column.astype(np.float64)
        deviation = exact.std()
        varies = deviation > STEADY * max(float(np.abs(exact).max()), 1e-3)
        if varies and np.abs(exact - short).max() > LOST * deviation:
            return True
    return False


@dataclass(frozen=True)
class Trajectories:
    """A data set of trajectories; a state's successor is the next row, except at the end of a trajectory.

    Args:
        observations: (states, obs_dim), numbers; kept as float32, or as float64 where float32 would blur what
            varies, as in Unix times and UTM coordinates.
        actions: (states, act_dim) in [-1, 1]; that of a trajectory's last state is never used.
        terminals: (states,), true at the last state of each trajectory.
        source: where they come from, for messages and records.

    Raises:
        InputError: shapes or kinds that do not fit, observations or actions that are not finite, actions
            outside [-1, 1], a trajectory of one state, or a last state that is not marked as an end.
    """

    observations: Float[np.ndarray, "states obs_dim"]
    actions: Float[np.ndarray, "states act_dim"]
    terminals: Bool[np.ndarray, " states"]
    source: str = "data"

    def __post_init__(self) -> None:
        where = self.source
        observations, actions = np.asarray(self.observations), np.asarray(self.actions)
        terminals = np.asarray(self.terminals)
        if observations.ndim != 2 or not is_real(observations):
            raise InputError(
                f"observations of {where} are {observations.dtype} of shape {observations.shape}; they must "
                "be real numbers of shape (states, features): encode images or dictionaries first"
            )
        if len(observations) == 0 or observations.shape[1] == 0:
            raise InputError(f"{where} holds no states")
        if actions.ndim != 2 or not np.issubdtype(actions.dtype, np.floating) or actions.shape[1] == 0:
            raise InputError(
                f"actions of {where} are {actions.dtype} of shape {actions.shape}; they must be real numbers "
                "of shape (states, act_dim): discrete actions are not supported"
            )
        if len(actions) != len(observations) or terminals.shape != (len(observations),):
            raise InputError(
                f"{where} has {len(observations)} observations, {len(actions)} actions and terminals of "
                f"shape {terminals.shape}; there must be one of each a state"
            )
        if not np.isin(terminals, (0, 1)).all():
            raise InputError(f"terminals of {where} hold other values than 0 and 1")
        terminals = terminals.astype(bool)
        if not terminals[-1]:
            raise InputError(
                f"terminals of {where} do not mark the last state; mark the last state of every trajectory"
            )
        bad = ~np.isfinite(observations).all(axis=1)
        if bad.any():
            raise InputError(
                f"observation {int(bad.argmax())} of {where} is not finite (and {int(bad.sum()) - 1} others)"
            )
        actions = np.where(terminals[:, None], 0, actions)
        bad = ~np.isfinite(actions).all(axis=1)
        if bad.any():
            raise InputError(
                f"action {int(bad.argmax())} of {where} is not finite (and {int(bad.sum()) - 1} others)"
            )
        bad = np.abs(actions).max(axis=1) > 1 + SLACK
        if bad.any():
            place = int(bad.argmax())
            raise InputError(
                f"action {place} of {where} is {actions[place].tolist()}; actions must lie in [-1, 1]: "
                "divide them by the limits of the action space"
            )
        with np.errstate(over="ignore"):  # said in a line of its own, below
            rounded = np.ascontiguousarray(observations, np.float32)
        object.__setattr__(self, "actions", np.ascontiguousarray(actions.clip(-1, 1), np.float32))
        object.__setattr__(self, "terminals", terminals)
        if not np.isfinite(rounded).all():
            raise InputError(f"observations of {where} are too large for float32")
        if _blurred(observations, rounded):
            rounded = np.ascontiguousarray(observations, np.float64)
        object.__setattr__(self, "observations", rounded)
        short = np.diff(np.concatenate([[-1], self.last_states])) < 2
        if short.any():
            raise InputError(
                f"trajectory {int(short.argmax())} of {where} is a single state (and {int(short.sum()) - 1} "
                "others); a trajectory needs two states at least: leave those out, or mark only the last "
                "state where the last two are marked"
            )

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def obs_dim(self) -> int:
        """Numbers in an observation."""
        return self.observations.shape[1]

    @property
    def act_dim(self) -> int:
        """Numbers in an action."""
        return self.actions.shape[1]

    @cached_property
    def last_states(self) -> Int[np.ndarray, " trajectories"]:
        """Index of the last state of each trajectory."""
        return np.flatnonzero(self.terminals)

    @cached_property
    def ends(self) -> Int[np.ndarray, " states"]:
        """For each state the index of the last state of its trajectory."""
        lengths = np.diff(np.concatenate([[-1], self.last_states]))
        return np.repeat(self.last_states, lengths)

    @cached_property
    def digest(self) -> str:
        """A short hash of the content: a run goes on only with the same data."""
        found = hashlib.sha256()
        for array in (self.observations, self.actions, self.terminals):
            found.update(repr(array.shape).encode())
            found.update(array.data)
        return found.hexdigest()[:16]

    def tensors(self) -> "TrajectoryTensors":
        """The same as tensors, from which batches are drawn."""
        return TrajectoryTensors(
            torch.from_numpy(self.observations),
            torch.from_numpy(self.actions),
            torch.from_numpy(self.ends.astype(np.int64)),
            torch.from_numpy(np.flatnonzero(~self.terminals)),
        )


@dataclass(frozen=True)
class TrajectoryTensors:
    """What batches are drawn from.

    Attributes:
        observations: (states, obs_dim) float32, or float64 where the data are.
        actions: (states, act_dim) float32.
        ends: (states,) index of the last state of each state's trajectory.
        moves: indices of the states that have a successor.
    """

    observations: Float[torch.Tensor, "states obs_dim"]
    actions: Float[torch.Tensor, "states act_dim"]
    ends: Int[torch.Tensor, " states"]
    moves: Int[torch.Tensor, " transitions"]

    def draw_moves(self, count: int) -> Int[torch.Tensor, " count"]:
        """Uniformly random states that have a successor."""
        return self.moves[torch.randint(len(self.moves), (count,))]

    def draw_future(self, states: Int[torch.Tensor, " b"], gamma: float) -> Int[torch.Tensor, " b"]:
        """A later state of the same trajectory, min(t + k, end) with k geometric, P(k) = (1-γ) γ^(k-1)."""
        steps = torch.empty(len(states), dtype=torch.float64).geometric_(1 - gamma).long()
        return torch.minimum(states + steps, self.ends[states])
