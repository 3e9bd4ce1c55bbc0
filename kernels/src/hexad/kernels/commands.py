"""`hexad kernels`: which implementation serves each operation on this machine, and how fast it is."""

import datetime
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_choice

# Each operation's benchmark module names its paths and measures them.
OPERATIONS = {"sparse_attention": "hexad.kernels.sparse_attention.benchmark"}

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The operations that methods share: which implementation serves here, and how fast it is.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


@app.command("info")
def info(as_json: Json = False) -> None:
    """Say which implementations of each operation can serve on this machine, and why others cannot.

    Where native code is not built yet, this builds it (a few seconds). Environment: HEXAD_NATIVE=0 switches
    native code off, CXX names the C++ compiler to try first, HEXAD_CACHE the folder for what is built.
    """
    from hexad.kernels.native import cache_folder

    found: dict[str, Any] = {"cache": None, "operations": {}}
    with suppress(InputError):  # no home: the operation's own reason says so
        found["cache"] = str(cache_folder())
    for name, module in OPERATIONS.items():
        operation = import_module(module)
        found["operations"][name] = {
            "serves": operation.serving(),
            "native": operation.details(),
            "reasons_against": operation.paths(),
        }
    if as_json:
        print_json(found)
        return
    for name, operation in found["operations"].items():
        stdout.print(f"[bold]{name}[/]: served by [bold]{operation['serves']}[/] on this CPU")
        width = max(map(len, operation["reasons_against"]))
        for path, reason in operation["reasons_against"].items():
            note = "can serve" if reason is None else f"cannot: {reason}"
            if path == "native" and reason is None:
                note += f": {operation['native']}"
            # Not a table: its cells would break the paths, which are there to be copied.
            stdout.print(f"  {path:<{width}}  {note}", soft_wrap=True, markup=False)
    if found["cache"] is not None:
        stdout.print(f"Native code is kept in {found['cache']}", soft_wrap=True, markup=False)


@app.command("bench")
def bench(
    operation: Annotated[str, typer.Argument(help="Operation to measure; all of them by default.")] = "all",
    preset: Annotated[
        Literal["quick", "full"],
        typer.Option("--preset", "-p", help="Size: under a minute, or some minutes."),
    ] = "quick",
    lengths: Annotated[
        str, typer.Option(help="Numbers of tokens instead of the preset's, with commas.")
    ] = "",
    dtypes: Annotated[str, typer.Option(help="Dtypes instead of the preset's, with commas.")] = "",
    rounds: Annotated[
        int | None, typer.Option(help="Timed turns of each call instead of the preset's.")
    ] = None,
    flex: Annotated[
        bool | None, typer.Option("--flex/--no-flex", help="Time flex_attention too (it compiles long).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure every CPU path beside torch's own dense attention, interleaved in one run.

    Times count the whole call: prediction of the mask, layout and attention. A ratio above 1 is faster than
    scaled_dot_product_attention; the number behind it is the relative L1 error against float64. Close other
    programs first: a busy core disturbs the ratios.

    Examples:

        hexad kernels bench

        hexad kernels bench --lengths 8192 --dtypes bfloat16 --rounds 9

        hexad kernels bench --preset full --json > bench.json
    """
    if operation != "all":
        check_choice("operation", operation, OPERATIONS)
    import torch

    from hexad.core.environment import environment

    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "operations": {},
    }
    chosen = OPERATIONS if operation == "all" else {operation: OPERATIONS[operation]}
    for name, module in chosen.items():
        measured = import_module(module)
        given = {
            "lengths": tuple(_number(part) for part in lengths.split(",") if part),
            "dtypes": tuple(part.strip() for part in dtypes.split(",") if part),
            "rounds": rounds,
            "flex": flex,
        }
        config = replace(measured.PRESETS[preset], **{k: v for k, v in given.items() if v not in (None, ())})
        with progress_bar(stderr, name) as watch:
            rows, notes = measured.measure(config, watch)
        report["operations"][name] = {
            "native": measured.details(),
            "config": asdict(config),
            "rows": [asdict(row) for row in rows],
            "notes": notes,
        }
        report["markdown"] = report.get("markdown", "") + measured.markdown(rows, notes)
        report["markdown"] += f"\n{_provenance(report, config)}\n"
        if not as_json:
            _print_tables(measured, rows, notes)
    if as_json:
        print_json(report)


def _provenance(report: dict[str, Any], config: Any) -> str:
    """One sentence: when, where and how often it was measured."""
    machine = report["environment"]
    commit = f"; commit {machine['commit']}" if machine["commit"] else ""
    return (
        f"Measured {report['date']} by `hexad kernels bench`, the median of {config.rounds} rounds, "
        f"{config.heads} heads of dimension {config.head_dim}, {report['threads']} threads, on "
        f"{machine['processor']}, {machine['cores']} cores, PyTorch {machine['packages']['torch']}{commit}."
    )


def _print_tables(measured: Any, rows: list[Any], notes: list[str]) -> None:
    names = list(dict.fromkeys(row.path for row in rows))
    for kind, title in (
        ("random", "Random masks: times faster than dense, relative L1 error under the same mask"),
        ("predicted", "Predicted masks: times faster than dense, relative L1 error against dense"),
    ):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("dtype", "tokens", "kept", "dense ms", *names):
            table.add_column(heading, justify="left" if heading == "dtype" else "right", no_wrap=True)
        for line in measured.by_call([row for row in rows if row.mask == kind]):
            first = line[next(iter(line))]
            cells = [f"{line[n].speedup:.2f}x {line[n].error:.0e}" if n in line else "" for n in names]
            dense = f"{first.dense_milliseconds:.1f}"
            table.add_row(first.dtype, str(first.length), f"{first.kept:.0%}", dense, *cells)
        stdout.print(title)
        stdout.print(table)
        stdout.print()
    for note in notes:
        stdout.print(note, soft_wrap=True)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--lengths must be whole numbers with commas between them, got {text!r}") from None
