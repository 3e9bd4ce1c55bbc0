"""What the command leaves and says: files, a table or JSON, one line on how it ended."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console

from hexad.core.files import atomic_open, write_json
from hexad.core.terminal import make_table, print_json, print_table
from hexad.rl_graph.gs_poweropt.figures import draw_progress
from hexad.rl_graph.gs_poweropt.state_file import COLUMNS


def write_report(
    result: dict[str, Any],
    settings: dict[str, Any],
    history: list[tuple[float, ...]],
    warned: list[str],
    resumed: int,
    out: Path,
) -> dict[str, Any]:
    """Write the files; gives what result.json holds, and with it the paths."""
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
    return report | {"files": [str(path) for path in files]}


def show_report(
    result: dict[str, Any], report: dict[str, Any], out: Path, as_json: bool, stdout: Console, stderr: Console
) -> None:
    """Say what was found; the exit code is 130 after Ctrl-C."""
    if as_json:
        print_json(report)
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
            f"polish); {result['ess']:.1f} of {report['settings']['popsize']} samples had weight in the last "
            "step",
            markup=False,
            soft_wrap=True,
        )
        stdout.print(f"{result['message']}", markup=False, soft_wrap=True)
        stdout.print(f"Files: {', '.join(report['files'])}", soft_wrap=True, markup=False)
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
