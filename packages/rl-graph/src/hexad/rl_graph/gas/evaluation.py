"""Success in gymnasium environments with goals, many episodes side by side.

OGBench's environments give their goal as `info["goal"]` and tell `info["success"]`; a task is chosen by
`reset(options={"task_id": 1})`. Other environments need the same two.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.rl_graph.gas.mazes import make_env

if TYPE_CHECKING:
    import gymnasium

Controller = Callable[[Float[np.ndarray, "episodes obs_dim"]], Float[np.ndarray, "episodes act_dim"]]
Start = Callable[[Float[np.ndarray, "episodes obs_dim"]], Controller]
"""Takes the goals of all episodes and returns what maps observations to actions, step after step."""


@dataclass(frozen=True)
class Evaluation:
    """What became of each episode.

    Attributes:
        tasks: (episodes,) the task of each.
        success: (episodes,) whether the goal was reached.
        steps: (episodes,) moves made until then, or until time was over.
        goals: (episodes, obs_dim).
        traces: (steps + 1, episodes, obs_dim) observations; after its end an episode's last one is repeated.
    """

    tasks: Int[np.ndarray, " episodes"]
    success: Bool[np.ndarray, " episodes"]
    steps: Int[np.ndarray, " episodes"]
    goals: Float[np.ndarray, "episodes obs_dim"]
    traces: Float[np.ndarray, "moments episodes obs_dim"]

    def by_task(self) -> dict[int, float]:
        """The share of successes in each task."""
        return {int(task): float(self.success[self.tasks == task].mean()) for task in np.unique(self.tasks)}


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Generator[None]:
    """OGBench draws starts and goals from NumPy's global generator; it is put back afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _episode(name: str, task: int, seed: int, max_steps: int | None) -> "gymnasium.Env":
    """The environment whose every reset begins that task from that seed."""
    import gymnasium

    class Fixed(gymnasium.Wrapper):
        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self.action_space.seed(seed)
            with _numpy_seed(seed):
                return self.env.reset(seed=seed, options={"task_id": task})

    options = {} if max_steps is None else {"max_episode_steps": max_steps}
    return Fixed(make_env(name, **options))


def evaluate(
    start: Start,
    env: str,
    *,
    tasks: Sequence[int] = (1, 2, 3, 4, 5),
    episodes: int = 10,
    max_steps: int | None = None,
    seed: int = 0,
    asynchronous: bool = False,
    progress: Callable[[float, str], None] | None = None,
) -> Evaluation:
    """Run episodes of several tasks in a vectorised environment and see which reach their goal.

    Args:
        start: see `Start`; `GAS.controller` of an agent is one.
        env: name of a gymnasium environment such as `pointmaze-medium-v0`.
        tasks: OGBench's tasks are numbered from 1.
        episodes: of each task.
        max_steps: of an episode; the environment's own limit where None.
        seed: of starts and goals; the same for all that is compared.
        asynchronous: run each episode in a process of its own, for slow simulators.
        progress: called as `progress(fraction, "31 of 50 arrived")`.

    Raises:
        InputError: an unknown environment, no tasks, or an environment that tells no goal.
        MissingExtraError: gymnasium or OGBench is not installed.
    """
    check_count("episodes", episodes)
    check_count("seed", seed, 0)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    if not tasks:
        raise InputError("tasks is empty; name at least one")
    if len(set(tasks)) < len(tasks):
        raise InputError(f"tasks {list(tasks)} name one twice; name each once, and ask for more episodes")
    probe = make_env(env)  # whatever is wrong with the name is said before anything is started
    known = getattr(probe.unwrapped, "num_tasks", None)
    limit = max_steps or getattr(probe.spec, "max_episode_steps", None)
    probe.close()
    for task in tasks:
        check_count("task", task)
        if known is not None and task > known:
            raise InputError(f"task {task} is not there; {env} has tasks 1 to {known}")
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    numbers = np.repeat(np.array(tasks), episodes)
    makers = [
        lambda task=int(task), own=seed * 100_003 + place: _episode(env, task, own, max_steps)
        for place, task in enumerate(numbers)
    ]
    kind = AsyncVectorEnv if asynchronous else SyncVectorEnv
    # Whoever is done begins anew by itself, which is not looked at.
    world: Any = kind(makers)
    try:
        observations, info = world.reset()
        if "goal" not in info:
            raise InputError(
                f"{env} gives no info['goal'] on reset; only environments that do can be evaluated"
            )
        goals = np.stack(list(info["goal"])).astype(np.float64)
        act = start(goals)
        running = np.ones(len(numbers), bool)
        success, steps = np.zeros(len(numbers), bool), np.zeros(len(numbers), np.int64)
        traces = [np.array(observations)]
        while running.any():
            observations, _, terminated, truncated, info = world.step(act(observations).astype(np.float32))
            steps[running] += 1
            success |= running & (np.asarray(info.get("success", np.zeros(len(numbers)))) > 0)
            traces.append(np.where(running[:, None], observations, traces[-1]))
            running &= ~(terminated | truncated | success)
            if progress is not None and limit:
                progress(min(len(traces) / limit, 1.0), f"{success.sum()} of {len(numbers)} arrived")
    finally:
        world.close()
    return Evaluation(numbers, success, steps, goals, np.stack(traces))
