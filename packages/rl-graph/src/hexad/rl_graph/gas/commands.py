"""The command line: `hexad rl-graph gas generate`, `train`, `evaluate`, `plot`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import make_table, print_json, print_table, progress_bar
from hexad.core.validation import check_count, check_folder
from hexad.rl_graph.gas.training_command import JsonOption, say, stderr, stdout, train

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="GAS: an agent for distant goals from short, reward-free trajectories, by a graph over an embedding "
    "of temporal distance.\n\nBegin with your own data (`train data.npz`), or with OGBench's point mazes: "
    "`generate medium`, `train`, `evaluate`, `plot`.",
)

EnvOption = Annotated[
    str, typer.Option(help="Gymnasium environment that gives info['goal'] and info['success'], as OGBench's.")
]
MaxStepsOption = Annotated[
    int | None, typer.Option(help="Moves an episode; default is the environment's limit.")
]
RunArgument = Annotated[Path, typer.Argument(help="Folder that `train` wrote.")]


def _writable(path: Path, suffixes: tuple[str, ...], what: str) -> None:
    """Refuse a file of another suffix, a folder, or one in a folder that is not there."""
    from hexad.core.files import writable_folder

    if path.suffix.lower() not in suffixes:
        raise InputError(f"{what} {path} must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"{what} {path} is a folder; name a file")
    writable_folder(check_folder(path.parent, f"folder of {what}"))


@app.command()
def generate(
    maze: Annotated[Literal["medium", "large", "giant"], typer.Argument(help="Size of the maze.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in OGBench's format.")] = Path(
        "data.npz"
    ),
    kind: Annotated[
        Literal["stitch", "navigate", "explore"],
        typer.Option(
            help="stitch: 200 moves to a goal 4 cells away. navigate: 1000 moves from goal to goal. "
            "explore: 500 moves, each 10 in a random direction."
        ),
    ] = "stitch",
    episodes: Annotated[
        int, typer.Option(help="300 suffice for medium, 500 for large; OGBench has 5000.")
    ] = 300,
    noise: Annotated[
        float | None, typer.Option(help="Deviation of an action's noise; default 0.5, for explore 1.0.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same data.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a data set of a point mass in a maze, in OGBench's MuJoCo simulator.

    MAZE is its size.

    Needs the extra ogbench; nothing is downloaded. 300 episodes of 200 moves take about five seconds.

    Example:

        hexad rl-graph gas generate medium --out medium.npz
    """
    from hexad.rl_graph.gas.mazes import generate_pointmaze
    from hexad.rl_graph.gas.readers import write_ogbench_npz

    _writable(out, (".npz",), "output")
    with progress_bar(stderr, f"{maze} {kind}", quiet=as_json) as tell:
        data = generate_pointmaze(maze, kind, episodes, seed=seed, noise=noise, progress=tell)
    write_ogbench_npz(out, data)
    described = {"file": str(out), "maze": maze, "kind": kind, "episodes": episodes, "states": len(data)}
    if as_json:
        print_json(described | {"seed": seed})
    else:
        say(f"{out}: {episodes} episodes, {len(data):,} states of {maze} {kind}")


app.command()(train)


@app.command()
def evaluate(
    run: RunArgument,
    env: EnvOption = "pointmaze-medium-v0",
    tasks: Annotated[
        str, typer.Option(help="Numbers of OGBench's tasks, separated by commas.")
    ] = "1,2,3,4,5",
    episodes: Annotated[int, typer.Option(help="Of each task.")] = 10,
    max_steps: MaxStepsOption = None,
    no_graph: Annotated[
        bool, typer.Option("--no-graph", help="Head straight for the goal, to see what the graph adds.")
    ] = False,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="A process for each episode, for slow simulators.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of starts and goals.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the agent in a gymnasium environment and count the goals it reaches.

    RUN is the folder that `train` wrote.

    Example:

        hexad rl-graph gas evaluate run --env pointmaze-medium-v0
    """
    from hexad.rl_graph.gas.agent import GAS
    from hexad.rl_graph.gas.evaluation import evaluate as run_episodes

    chosen = _task_numbers(tasks)
    agent = GAS.load_without_graph(run) if no_graph else GAS.load(run)
    with progress_bar(stderr, env, quiet=as_json) as tell:
        found = run_episodes(
            agent.straight_controller if no_graph else agent.controller,
            env,
            tasks=chosen,
            episodes=episodes,
            max_steps=max_steps,
            seed=seed,
            asynchronous=asynchronous,
            progress=tell,
        )
    shares = found.by_task()
    moves = {task: float(found.steps[found.tasks == task].mean()) for task in shares}
    if as_json:
        print_json(
            {
                "run": str(run),
                "env": env,
                "graph": not no_graph,
                "episodes": episodes,
                "seed": seed,
                "success": float(found.success.mean()),
                "tasks": [{"task": t, "success": shares[t], "moves": moves[t]} for t in shares],
            }
        )
        return
    table = make_table("task", "success", "moves")
    for task, share in shares.items():
        table.add_row(str(task), f"{share:.0%}", f"{moves[task]:.0f}")
    table.add_row("all", f"{found.success.mean():.0%}", f"{found.steps.mean():.0f}")
    print_table(stdout, table)


def _task_numbers(tasks: str) -> list[int]:
    try:
        found = [int(part) for part in tasks.split(",")]
    except ValueError:
        raise InputError(f"--tasks is {tasks!r}; give numbers separated by commas, such as 1,2,5") from None
    for task in found:
        check_count("--tasks", task)
    return found


@app.command()
def plot(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG, PDF or SVG to write.")] = Path("gas.png"),
    env: EnvOption = "pointmaze-medium-v0",
    task: Annotated[int, typer.Option(help="Number of OGBench's task.")] = 1,
    gif: Annotated[Path | None, typer.Option(help="GIF to write too: the agent on its way.")] = None,
    max_steps: MaxStepsOption = None,
    seed: Annotated[int, typer.Option(help="Of start and goal.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Draw a maze with the graph's nodes, the path chosen at the start, and the agent's way.

    RUN is the folder that `train` wrote; the first two numbers of its observations must be the position.

    Example:

        hexad rl-graph gas plot run --env pointmaze-medium-v0 --task 1 --gif way.gif
    """
    from hexad.core.plots import save_figure
    from hexad.rl_graph.gas.agent import GAS
    from hexad.rl_graph.gas.figures import draw_maze, walk, write_animation

    _writable(out, (".png", ".pdf", ".svg"), "picture")
    if gif is not None:
        _writable(gif, (".gif",), "animation")
    agent = GAS.load(run)
    with progress_bar(stderr, env, quiet=as_json) as tell:
        walked = walk(agent, env, task, max_steps=max_steps, seed=seed, progress=tell)
    moves = len(walked.trace) - 1
    title = f"{env}, task {task}: " + (f"reached in {moves} moves" if walked.success else "not reached")
    shown: dict[str, Any] = {"nodes": walked.nodes, "goal": walked.goal, "title": title}
    save_figure(draw_maze(walked.walls, path=walked.path, trace=walked.trace, **shown), out)
    if gif is not None:
        write_animation(gif, walked.walls, walked.trace, planned=walked.path, **shown)
    if as_json:
        print_json(
            {
                "picture": str(out),
                "gif": None if gif is None else str(gif),
                "success": walked.success,
                "moves": moves,
                "path": len(walked.path),
            }
        )
    else:
        say(f"{out}{'' if gif is None else f' and {gif}'}: {title}")
