"""Pictures of mazes: walls, nodes, the chosen path, the way that the agent went; and the same in motion."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.plots import COLOURS, STYLE, new_figure
from hexad.core.validation import check_count
from hexad.rl_graph.gas.agent import GAS
from hexad.rl_graph.gas.evaluation import Controller, evaluate
from hexad.rl_graph.gas.fitting import Progress
from hexad.rl_graph.gas.mazes import CELL, make_env

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRAMES = 120
"""Frames of an animation at most."""
RATE = 20
"""Frames a second."""


@dataclass(frozen=True)
class Walk:
    """One episode in a maze, as it is drawn.

    Attributes:
        walls: (rows, columns), which cells are walls.
        nodes: (nodes, 2) positions of the graph's nodes.
        path: (points, 2) from the start by the nodes that were chosen there to the goal.
        trace: (moments, 2) positions of the agent.
        goal: (2,).
        success: whether it was reached.
    """

    walls: Bool[np.ndarray, "rows columns"]
    nodes: Float[np.ndarray, "nodes 2"]
    path: Float[np.ndarray, "points 2"]
    trace: Float[np.ndarray, "moments 2"]
    goal: Float[np.ndarray, " 2"]
    success: bool


def walk(
    agent: GAS,
    env: str,
    task: int,
    *,
    max_steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Walk:
    """Let the agent run one episode in one of OGBench's mazes.

    Args:
        agent: fitted on observations whose first two numbers are the position.
        env: name of the environment.
        task: number of the task.
        max_steps: of the episode; the environment's own limit where None.
        seed: of start and goal.
        progress: called as `progress(fraction, "0 of 1 arrived")`.

    Raises:
        InputError: the environment is no maze, the graph holds no positions, or as `evaluate`.
    """
    world = make_env(env)
    walls = getattr(world.unwrapped, "maze_map", None)
    world.close()
    if walls is None:
        raise InputError(f"{env} is no maze of OGBench; only their walls can be drawn")
    graph = agent.graph_
    if graph is None or graph.observations is None:
        raise InputError("the graph holds no observations of its nodes; fit the stage graph again")
    nodes, chosen = graph.observations, []

    def start(goals: Float[np.ndarray, "episodes obs_dim"]) -> Controller:
        navigator = agent.navigate(goals)

        def act(observations: Float[np.ndarray, "episodes obs_dim"]) -> Float[np.ndarray, "episodes act_dim"]:
            actions = agent.act(observations, navigator)
            if not chosen:
                chosen.append(navigator.path(0))
            return actions

        return act

    found = evaluate(start, env, tasks=[task], episodes=1, max_steps=max_steps, seed=seed, progress=progress)
    trace, goal = found.traces[: found.steps[0] + 1, 0, :2], found.goals[0, :2]
    path = np.concatenate([trace[:1], nodes[chosen[0], :2], goal[None]])
    return Walk(np.asarray(walls) == 1, nodes[:, :2], path, trace, goal, bool(found.success[0]))


def draw_maze(
    walls: Bool[np.ndarray, "rows columns"],
    *,
    nodes: Float[np.ndarray, "nodes 2"] | None = None,
    path: Float[np.ndarray, "points 2"] | None = None,
    trace: Float[np.ndarray, "moments 2"] | None = None,
    goal: Float[np.ndarray, " 2"] | None = None,
    title: str = "",
    axis: "Axes | None" = None,
) -> "Figure":
    """Draw one maze and what goes on in it.

    Args:
        walls: which cells are walls, as OGBench's `maze_map`.
        nodes: positions of the graph's nodes.
        path: positions along the path that was chosen.
        trace: positions of the agent.
        goal: position of the goal.
        title: above the picture.
        axis: to draw into; a figure of its own where None.
    """
    rows, columns = np.shape(walls)
    alone = axis is None
    if axis is None:
        _, axis = new_figure(1.5 + 0.45 * columns, 1.2 + 0.45 * rows)
    extent = (-1.5 * CELL, (columns - 1.5) * CELL, (rows - 1.5) * CELL, -1.5 * CELL)
    axis.imshow(walls, cmap="Greys", vmin=0, vmax=2, extent=extent, zorder=0)
    if nodes is not None:
        axis.scatter(*nodes.T, s=7, color=COLOURS[6], linewidths=0, label="nodes", zorder=2)
    if path is not None and len(path):
        axis.plot(*path.T, "o-", color=COLOURS[4], markersize=4, linewidth=1.2, label="chosen path", zorder=3)
    if trace is not None and len(trace):
        axis.plot(*trace.T, color=COLOURS[0], linewidth=1.6, label="way of the agent", zorder=4)
        axis.plot(*trace[0], "o", color=COLOURS[0], markersize=7, zorder=5)
    if goal is not None:
        axis.plot(*goal, "*", color=COLOURS[1], markersize=14, linestyle="none", label="goal", zorder=6)
    axis.set_xlim(*extent[:2])
    axis.set_ylim(extent[3], extent[2])  # rows of the map go up, as y does
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    if title:
        axis.set_title(title)
    if alone and axis.get_legend_handles_labels()[0]:
        axis.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0.0), fontsize=8)
    figure: Any = axis.get_figure(root=True)
    return figure


def write_animation(
    path: str | Path,
    walls: Bool[np.ndarray, "rows columns"],
    trace: Float[np.ndarray, "moments 2"],
    *,
    nodes: Float[np.ndarray, "nodes 2"] | None = None,
    planned: Float[np.ndarray, "points 2"] | None = None,
    goal: Float[np.ndarray, " 2"] | None = None,
    title: str = "",
) -> None:
    """Write the way of the agent as a GIF, at most 120 frames.

    Args:
        path: ends in `.gif`.
        walls: as `draw_maze`, and the other arguments too.
        trace: positions of the agent.
        nodes: positions of the graph's nodes.
        planned: positions along the path that was chosen.
        goal: position of the goal.
        title: above the picture.

    Raises:
        InputError: another suffix, or no positions.
    """
    from matplotlib.animation import FuncAnimation, PillowWriter

    path = Path(path)
    if path.suffix.lower() != ".gif":
        raise InputError(f"animation {path} must end in .gif")
    check_count("positions of the trace", len(trace))
    figure = draw_maze(walls, nodes=nodes, path=planned, trace=trace[:1], goal=goal, title=title)
    (axis,) = figure.axes
    (line,) = axis.plot([], [], color=COLOURS[0], linewidth=1.6, zorder=4)
    (point,) = axis.plot([], [], "o", color=COLOURS[0], markersize=8, zorder=5)
    shown = np.unique(np.linspace(0, len(trace) - 1, min(FRAMES, len(trace))).astype(int))

    def draw(moment: int) -> tuple:
        line.set_data(*trace[: moment + 1].T)
        point.set_data(*trace[moment : moment + 1].T)
        return line, point

    animation = FuncAnimation(figure, draw, frames=shown.tolist())
    with atomic_path(path) as temporary:
        animation.save(temporary, writer=PillowWriter(fps=RATE), dpi=STYLE["figure.dpi"])
