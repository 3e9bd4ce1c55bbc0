"""The command line: `hexad rl-graph gs-poweropt minimize module:function --x0 1,2`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from hexad.core.terminal import progress_bar, warnings_as_lines
from hexad.core.validation import check_count, check_range

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="GS-PowerOpt: minimise a black box globally by Gaussian smoothing of its power transform.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


@app.callback()
def _group() -> None:
    """Keep `minimize` a command of its own although it is the only one."""


@app.command()
def minimize(
    objective: Annotated[
        str, typer.Argument(help="module:function of this folder or an installed package; fun(x) -> float.")
    ],
    x0: Annotated[str, typer.Option(help="Start: numbers by commas (--x0=-1,2), or a .npy or text file.")],
    bounds: Annotated[
        str, typer.Option(help="low:high for all variables, or by commas for each; a side may be left out.")
    ] = "",
    power: Annotated[float, typer.Option(help="N: the larger, the more the best samples count.")] = 2.0,
    sigma: Annotated[
        float, typer.Option(help="Standard deviation of the samples, fixed; a tenth of the bounds' width.")
    ] = 1.0,
    popsize: Annotated[int, typer.Option(help="K, evaluations a step.")] = 100,
    maxiter: Annotated[int, typer.Option(help="Steps.")] = 1000,
    maxfev: Annotated[int | None, typer.Option(help="Evaluations at most.")] = None,
    learning_rate: Annotated[float, typer.Option(help="Length of the first step.")] = 0.1,
    decay: Annotated[float, typer.Option(help="Steps until their length is half; inf for never.")] = 1000.0,
    transform: Annotated[Literal["exp", "power"], typer.Option(help="EPGS or PGS.")] = "exp",
    baseline: Annotated[
        Literal["mean", "none"], typer.Option(help="Centre the weights, or the paper's update.")
    ] = "mean",
    shift: Annotated[float | None, typer.Option(help="For `power`: f = shift - fun, above 0.")] = None,
    scale: Annotated[
        Literal["none", "std"], typer.Option(help="std: divide fun by its deviation in each step.")
    ] = "none",
    x_scale: Annotated[
        str, typer.Option(help="Typical size of all variables, or of each by commas, or a file.")
    ] = "1",
    boundary: Annotated[
        Literal["clip", "reflect"], typer.Option(help="What becomes of samples out of bounds.")
    ] = "clip",
    nan_policy: Annotated[
        Literal["raise", "worst"], typer.Option(help="What to do where fun gives NaN or inf.")
    ] = "raise",
    vectorized: Annotated[
        Literal["no", "columns", "rows"], typer.Option(help="Whether fun takes (d, K) or (K, d).")
    ] = "no",
    evaluate_start: Annotated[
        bool, typer.Option("--evaluate-start/--skip-start", help="Evaluate x0, so that the best is no worse.")
    ] = True,
    evaluate_mean: Annotated[
        bool, typer.Option("--evaluate-mean", help="Evaluate the mean too, each step.")
    ] = False,
    polish: Annotated[
        bool, typer.Option("--polish", help="End with Nelder-Mead from the best point.")
    ] = False,
    noisy: Annotated[
        bool, typer.Option("--noisy", help="The function is random: do not check it when going on.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", "-j", help="Processes; -1: all cores.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the files.")] = Path("gs-poweropt-run"),
    save_every: Annotated[float, typer.Option(help="Seconds between saved states.")] = 5.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on from what --out holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Minimise a Python function of a vector, OBJECTIVE, written module:function.

    Writes result.json, history.csv, progress.png and state.npz. After Ctrl-C the best point is there, and the
    same command goes on from where it was; so does one with a larger --maxiter. It then evaluates the saved
    best point once more, not counted, and refuses a function that gives another value. The function is called
    as fun(x) with a NumPy vector. Final iterates lie, in each variable, about sigma / sqrt(popsize) from the
    smoothed objective's optimum: --polish, or a second run with a smaller --sigma, comes nearer. What the
    function prints goes to standard error with --json.

    Examples:

        hexad rl-graph gs-poweropt minimize scipy.optimize:rosen --x0=-1,2 --power 0.5 --sigma 0.5 --polish

        hexad rl-graph gs-poweropt minimize simulator:misfit --x0 start.npy --bounds 0:1 --sigma 0.1
            --learning-rate 0.01 --scale std -j -1
    """
    check_range("--save-every", save_every, 0)
    check_count("--seed", seed, 0)
    check_count("--maxiter", maxiter)
    from hexad.core.files import alone_in
    from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
    from hexad.rl_graph.gs_poweropt.command_input import bounds_of, function_of, vector_of
    from hexad.rl_graph.gs_poweropt.command_report import show_report, write_report
    from hexad.rl_graph.gs_poweropt.evaluation import Objective, evaluator
    from hexad.rl_graph.gs_poweropt.loop import budget_of
    from hexad.rl_graph.gs_poweropt.resumable import Folder, check_same, run

    start = vector_of(x0, "--x0")
    sizes = vector_of(x_scale, "--x-scale")
    settings: dict[str, Any] = {
        "transform": transform, "power": power, "sigma": sigma, "popsize": popsize,
        "learning_rate": learning_rate, "decay": decay, "baseline": baseline, "shift": shift,
        "scale": None if scale == "none" else scale, "nan_policy": nan_policy, "boundary": boundary,
    }  # fmt: skip
    box = bounds_of(bounds, len(start))
    with warnings_as_lines(stderr) as early:
        search = GSPower(
            start, x_scale=sizes[0] if len(sizes) == 1 else sizes, bounds=box, rng=seed, **settings
        )
    budget = budget_of(search, maxiter, maxfev, evaluate_start, evaluate_mean, polish)
    settings |= {
        "objective": objective, "x0": start.tolist(), "bounds": box, "x_scale": sizes.tolist(), "seed": seed,
        "evaluate_start": evaluate_start, "evaluate_mean": evaluate_mean,
    }  # fmt: skip
    settings["bounds"] = None if box is None else [list(pair) for pair in box]
    choice: Any = {"no": False, "columns": True, "rows": "rows"}[vectorized]
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        fun = function_of(objective)
        with evaluator(Objective(fun, ()), choice, workers) as evaluate, alone_in(out, "--out"):
            folder = Folder(out, settings, save_every)
            if not fresh:
                folder.go_on(search)
            resumed = search.nit
            with (
                warnings_as_lines(stderr) as warned,
                progress_bar(stderr, "minimize", quiet=as_json) as tell,
            ):
                if resumed and not noisy:
                    check_same(objective, evaluate, folder)
                result = run(search, evaluate, budget, folder, objective, tell)
            report = write_report(result, settings, folder.history, early + warned, resumed, out)
    show_report(result, report, out, as_json, stdout, stderr)
