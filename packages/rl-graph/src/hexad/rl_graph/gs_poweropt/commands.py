"""The command line: `hexad rl-graph gs-poweropt minimize module:function --x0 1,2`."""

import math
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from hexad.core.errors import HexadError, InputError
from hexad.core.terminal import make_table, print_json, print_table, progress_bar, warnings_as_lines
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
    sigma: Annotated[float, typer.Option(help="Standard deviation of the samples, which stays fixed.")] = 1.0,
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
    evaluate_mean: Annotated[
        bool, typer.Option("--evaluate-mean", help="Evaluate the mean too, each step.")
    ] = False,
    polish: Annotated[
        bool, typer.Option("--polish", help="End with Nelder-Mead from the best point.")
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
    same command goes on from where it was; so does one with a larger --maxiter. The function is called as
    fun(x) with a NumPy vector. Final iterates lie about sigma / sqrt(popsize) from an optimum: --polish, or a
    second run with a smaller --sigma, comes nearer.

    Examples:

        hexad rl-graph gs-poweropt minimize scipy.optimize:rosen --x0=-1,2 --power 0.5 --sigma 0.5 --polish

        hexad rl-graph gs-poweropt minimize simulator:misfit --x0 start.npy --bounds 0:1 --scale std -j -1
    """
    check_range("--save-every", save_every, 0)
    check_count("--seed", seed, 0)
    check_count("--maxiter", maxiter)
    from hexad.core.files import writable_folder
    from hexad.rl_graph.gs_poweropt import state_file
    from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
    from hexad.rl_graph.gs_poweropt.command_input import bounds_of, function_of, vector_of
    from hexad.rl_graph.gs_poweropt.evaluation import Objective, evaluator
    from hexad.rl_graph.gs_poweropt.minimize import advance, check_budget, describe, finish

    start = vector_of(x0, "--x0")
    sizes = vector_of(x_scale, "--x-scale")
    settings: dict[str, Any] = {
        "transform": transform, "power": power, "sigma": sigma, "popsize": popsize,
        "learning_rate": learning_rate, "decay": decay, "baseline": baseline, "shift": shift,
        "scale": None if scale == "none" else scale, "nan_policy": nan_policy, "boundary": boundary,
    }  # fmt: skip
    box = bounds_of(bounds, len(start))
    search = GSPower(start, x_scale=sizes[0] if len(sizes) == 1 else sizes, bounds=box, rng=seed, **settings)
    limit = check_budget(search, maxiter, maxfev, evaluate_mean, polish)
    fun = function_of(objective)
    settings |= {
        "objective": objective, "x0": start.tolist(), "bounds": box, "x_scale": sizes.tolist(), "seed": seed,
        "evaluate_mean": evaluate_mean,
    }  # fmt: skip
    settings["bounds"] = None if box is None else [list(pair) for pair in box]
    choice: Any = {"no": False, "columns": True, "rows": "rows"}[vectorized]
    ending: dict[str, Any] = {"fun_mean": math.nan, "nfev_polish": 0}
    history: list[tuple[float, ...]] = []
    state_path = out / "state.npz"
    with evaluator(Objective(fun, ()), choice, workers) as evaluate:
        writable_folder(out, "--out")
        if state_path.exists() and not fresh:
            history = state_file.load(state_path, search, settings)
        resumed, saved, stepping = search.nit, time.monotonic(), True
        with (
            warnings_as_lines(stderr) as warned,
            progress_bar(stderr, "minimize", quiet=as_json) as tell,
        ):

            def after_step() -> bool:
                nonlocal saved
                length = search.settings.step_length(search.nit - 1)
                history.append((search.nit, search.nfev, search.fun, search.ess, length))
                tell(max(search.nit / maxiter, search.nfev / limit), f"best {search.fun:.6g}")
                if time.monotonic() - saved >= save_every:
                    state_file.save(state_path, search, history, settings)
                    saved = time.monotonic()
                return False

            try:
                status = advance(search, evaluate, maxiter, limit, evaluate_mean, after_step)
                state_file.save(state_path, search, history, settings)
                stepping = False
                tell(1.0, "last evaluations")
                ending = finish(search, evaluate, limit, polish)
            except KeyboardInterrupt:
                status = 130
                if stepping:  # the state after the steps, from which the end is reached again, stays
                    state_file.save(state_path, search, history, settings)
            except Exception as error:
                if stepping:
                    state_file.save(state_path, search, history, settings)
                if isinstance(error, HexadError):
                    raise
                raise InputError(
                    f"{objective} failed in step {search.nit + 1} ({type(error).__name__}: {error}); what "
                    f"was done before is kept in {out}, and HEXAD_DEBUG=1 shows where"
                ) from error
    result = search.result | ending | describe(search, status)
    _report(result, settings, history, warned, resumed, out, as_json)


def _report(
    result: dict[str, Any],
    settings: dict[str, Any],
    history: list[tuple[float, ...]],
    warned: list[str],
    resumed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Write the files and say what was found; the exit code is 130 after Ctrl-C."""
    import csv

    import numpy as np

    from hexad.core.files import atomic_open, write_json
    from hexad.rl_graph.gs_poweropt.figures import draw_progress
    from hexad.rl_graph.gs_poweropt.state_file import COLUMNS

    files = [out / "result.json", out / "history.csv"]
    with atomic_open(files[1]) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((int(row[0]), int(row[1]), *row[2:]) for row in history)
    if history:
        files.append(out / "progress.png")
        draw_progress(np.array(history), result["accuracy"], files[2])
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in result.items()
    }
    # JSON knows neither NaN nor infinity.
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in plain.items()
    }
    report = plain | {"resumed_at": resumed, "warnings": warned, "settings": _jsonable(settings)}
    write_json(files[0], report)
    if as_json:
        print_json(report | {"files": [str(path) for path in files]})
    else:
        table = make_table("", "value", "x")
        for name, value, x in (("best", "fun", "x"), ("mean of the last iterates", "fun_mean", "x_mean")):
            shown = ", ".join(f"{part:.6g}" for part in result[x][:6])
            more = f", ... ({len(result[x])})" if len(result[x]) > 6 else ""
            number = result[value]
            table.add_row(name, f"{number:.8g}" if math.isfinite(number) else "not evaluated", shown + more)
        print_table(stdout, table)
        stdout.print(
            f"{result['nit']} steps, {result['nfev']} evaluations ({result['nfev_polish']} of them to "
            f"polish); {result['ess']:.1f} of {settings['popsize']} samples had weight in the last step",
            markup=False,
            soft_wrap=True,
        )
        stdout.print(f"{result['message']}", markup=False, soft_wrap=True)
        stdout.print(f"Files: {', '.join(map(str, files))}", soft_wrap=True, markup=False)
    if result["status"] == 130:
        stderr.print(
            f"Interrupted: {out} keeps the best point; the same command goes on from step {result['nit']}.",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130)


def _jsonable(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and math.isinf(value) else value
        for name, value in settings.items()
    }
