"""Point mazes in OGBench's own MuJoCo environments: data as its generator makes them, and true distances.

Needs the extra `ogbench`. OGBench (Park et al., ICLR 2025) publishes its data on a host; the generator of a
point maze needs no trained expert and is written here again (action = unit direction to the next cell on the
shortest way, plus noise).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from hexad.core.errors import MissingExtraError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.rl_graph.gas.trajectories import Trajectories

if TYPE_CHECKING:
    import gymnasium

Maze = Literal["medium", "large", "giant"]
Kind = Literal["stitch", "navigate", "explore"]
STEPS: dict[Kind, int] = {"stitch": 200, "navigate": 1000, "explore": 500}
"""Moves in an episode, as in OGBench's data sets."""
NOISE: dict[Kind, float] = {"stitch": 0.5, "navigate": 0.5, "explore": 1.0}
CELL = 4.0
"""Side of a cell of the maze."""
STRIDE = 0.2
"""How far a full action takes the point."""
STITCH_CELLS = 4
"""A stitch episode's goal lies exactly so many cells away: no episode crosses the maze."""
EXPLORE_STEPS = 10
"""So long an exploring point keeps its direction."""


def make_maze(maze: Maze, **options: Any) -> "gymnasium.Env":
    """OGBench's environment `pointmaze-<maze>-v0`.

    Args:
        maze: its size.
        options: passed to `gymnasium.make`.

    Raises:
        InputError: an unknown maze.
        MissingExtraError: OGBench is not installed.
    """
    check_choice("maze", maze, get_args(Maze))
    return make_env(f"pointmaze-{maze}-v0", **options)


def make_env(name: str, **options: Any) -> "gymnasium.Env":
    """A gymnasium environment, OGBench's among them.

    Raises:
        InputError: no environment has that name.
        MissingExtraError: gymnasium or OGBench is not installed.
    """
    try:
        import gymnasium
        import ogbench  # noqa: F401 - it registers its environments
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"environments need {error.name!r}, which is not installed; run: "
            'pip install "hexad-rl-graph[ogbench]"'
        ) from error
    check_choice("environment", name, gymnasium.registry)
    return gymnasium.make(name, **options)


def cell_of(positions: Float[np.ndarray, "n 2"]) -> Int[np.ndarray, "n 2"]:
    """Row and column of the cell that each position lies in."""
    return np.floor((np.asarray(positions)[:, ::-1] + CELL + CELL / 2) / CELL).astype(np.int64)


@dataclass(frozen=True)
class _Ways:
    """The next cell on the shortest way between any two cells, and how many cells lie between."""

    env: Any

    @functools.cached_property
    def free(self) -> Int[np.ndarray, "cells 2"]:
        """Row and column of each free cell."""
        return np.argwhere(self.env.maze_map == 0)

    @functools.lru_cache  # noqa: B019 - lives as long as one generation does
    def towards(self, start: tuple[int, int], goal: tuple[int, int]) -> Float[np.ndarray, " 2"]:
        """Centre of the next cell from `start` on the way to `goal`."""
        centres = [np.array(self.env.ij_to_xy(cell)) for cell in (start, goal)]
        return self.env.get_oracle_subgoal(*centres)[0]

    @functools.lru_cache  # noqa: B019
    def distances(self, goal: tuple[int, int]) -> Int[np.ndarray, "rows columns"]:
        """Steps from cell to cell to `goal`, -1 in walls."""
        centre = np.array(self.env.ij_to_xy(goal))
        return self.env.get_oracle_subgoal(centre, centre)[1]


def generate_pointmaze(
    maze: Maze,
    kind: Kind = "stitch",
    episodes: int = 300,
    *,
    seed: int = 0,
    noise: float | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Trajectories:
    """Make a data set in OGBench's simulator, as its own generator does.

    Args:
        maze: size of the maze.
        kind: `stitch`, 200 moves to a goal exactly 4 cells away (staying where no cell is so far);
            `navigate`, 1000 moves from goal to goal anywhere; `explore`, 500 moves, each 10 in one random
            direction.
        episodes: how many; OGBench's `stitch` has 5000. 60,000 states take about ten seconds.
        seed: same seed, same data.
        noise: deviation of the noise added to each number of an action; default 0.5, for `explore` 1.0.
        progress: called as `progress(fraction, "120 of 300 episodes")`.

    Raises:
        InputError: an unknown maze or kind, no episodes, a negative noise.
        MissingExtraError: OGBench is not installed.
    """
    check_choice("kind", kind, get_args(Kind))
    check_count("episodes", episodes)
    check_count("seed", seed, 0)
    noise = check_range("noise", NOISE[kind] if noise is None else noise, 0)
    env = make_maze(maze, terminate_at_goal=False, max_episode_steps=STEPS[kind] + 1)
    try:
        world: Any = env.unwrapped
        ways, rng = _Ways(world), np.random.default_rng(seed)
        states = np.empty((episodes, STEPS[kind] + 1, 2), np.float32)
        actions = np.zeros_like(states)
        env.reset(seed=seed)
        for episode in range(episodes):
            start, goal = _endpoints(ways, kind, rng)
            world.set_xy(np.array(world.ij_to_xy(start)) + rng.uniform(-1, 1, 2))
            heading = np.zeros(2)
            for step in range(STEPS[kind]):
                position = world.get_xy()
                states[episode, step] = position
                cell = tuple(int(part) for part in world.xy_to_ij(position))
                if kind == "explore":
                    if step % EXPLORE_STEPS == 0:
                        angle = rng.uniform(0, 2 * np.pi)
                        heading = np.array([np.cos(angle), np.sin(angle)])
                else:
                    if kind == "navigate" and cell == goal:
                        goal = _cell(ways, rng)
                    away = ways.towards(cell, goal) - position
                    heading = away / (np.linalg.norm(away) + 1e-6)
                action = np.clip(heading + rng.normal(0, noise, 2), -1, 1).astype(np.float32)
                actions[episode, step] = action
                world.step(action)
            states[episode, -1] = world.get_xy()
            if progress is not None:
                progress((episode + 1) / episodes, f"{episode + 1} of {episodes} episodes")
    finally:
        env.close()
    terminals = np.zeros(states.shape[:2], bool)
    terminals[:, -1] = True
    return Trajectories(
        states.reshape(-1, 2),
        actions.reshape(-1, 2),
        terminals.ravel(),
        source=f"pointmaze-{maze}-{kind}, {episodes} episodes, seed {seed}",
    )


def _cell(ways: _Ways, rng: np.random.Generator) -> tuple[int, int]:
    row, column = ways.free[rng.integers(len(ways.free))]
    return int(row), int(column)


def _endpoints(ways: _Ways, kind: Kind, rng: np.random.Generator) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cells in which an episode starts and to which it goes."""
    start = _cell(ways, rng)
    if kind != "stitch":
        return start, _cell(ways, rng)
    far = np.argwhere(ways.distances(start) == STITCH_CELLS)
    if len(far) == 0:
        return start, start
    row, column = far[rng.integers(len(far))]
    return start, (int(row), int(column))


def cell_distances(
    maze: Maze, starts: Float[np.ndarray, "n 2"], goals: Float[np.ndarray, "n 2"]
) -> Int[np.ndarray, " n"]:
    """Cells on the shortest way from start to goal: the truth that an embedding is compared with.

    For reporting only: no part of the method sees it.
    """
    env = make_maze(maze)
    try:
        ways = _Ways(env.unwrapped)
        limits = np.array(ways.env.maze_map.shape) - 1
        ends = [tuple(map(int, cell)) for cell in np.clip(cell_of(goals), 0, limits)]
        begins = np.clip(cell_of(starts), 0, limits)
        return np.array([ways.distances(g)[b[0], b[1]] for g, b in zip(ends, begins, strict=True)])
    finally:
        env.close()
