"""`hexad kernels`: which implementation serves each operation on this machine, and how fast it is."""

import datetime
from contextlib import suppress
from dataclasses import asdict, fields, replace
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, print_table, progress_bar
from hexad.core.validation import check_choice
from hexad.kernels.tables import Table

# Each operation's benchmark module names its paths and measures them.
OPERATIONS = {
    name: f"hexad.kernels.{name}.benchmark"
    for name in ("sparse_attention", "hadamard_transform", "low_bit_linear", "selective_scan")
}

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
    from hexad.core.files import cache_folder
    from hexad.kernels.native import CACHE

    found: dict[str, Any] = {"cache": None, "operations": {}}
    with suppress(InputError):  # no home: the operation's own reason says so
        found["cache"] = str(cache_folder(CACHE))
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
        typer.Option("--preset", "-p", help="Size: under a minute for each, or some minutes."),
    ] = "quick",
    lengths: Annotated[
        str, typer.Option(help="Numbers of tokens instead of the preset's, with commas.")
    ] = "",
    dtypes: Annotated[str, typer.Option(help="Dtypes instead of the preset's, with commas.")] = "",
    formats: Annotated[
        str, typer.Option(help="low_bit_linear: bits of weights and input, such as W4A8,W2A4.")
    ] = "",
    shapes: Annotated[
        str,
        typer.Option(
            help="low_bit_linear: rows x columns of the weights, such as 4096x4096; selective_scan: batch x "
            "channels x steps x states, such as 32x256x196x16, beside every length."
        ),
    ] = "",
    rounds: Annotated[
        int | None, typer.Option(help="Timed turns of each call instead of the preset's.")
    ] = None,
    flex: Annotated[
        bool | None,
        typer.Option("--flex/--no-flex", help="sparse_attention: time flex_attention (it compiles long)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure every CPU path beside torch's own operation, interleaved in one run.

    Times count the whole call: for sparse attention the prediction of the mask and the layout too, for the
    low-bit linear layer the transform and the rounding of the input. A ratio above 1 is faster than torch;
    the selective scan, which torch does not have, is measured beside mambapy's, forward and backward.
    Close other programs first: a busy core disturbs the ratios.

    Examples:

        hexad kernels bench

        hexad kernels bench sparse_attention --lengths 8192 --dtypes bfloat16 --rounds 9

        hexad kernels bench low_bit_linear --lengths 1,16 --formats W4A8,W2A4

        hexad kernels bench selective_scan --lengths 196 --shapes 1x1536x2048x16

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
    given = {
        "lengths": tuple(_number(part) for part in _parts(lengths)),
        "dtypes": _parts(dtypes),
        "formats": _parts(formats),
        "shapes": _parts(shapes),
        "rounds": rounds,
        "flex": flex,
    }
    given = {name: value for name, value in given.items() if value not in (None, ())}
    chosen = OPERATIONS if operation == "all" else {operation: OPERATIONS[operation]}
    measured = {name: import_module(module) for name, module in chosen.items()}
    configs = {name: _config(module, preset, given) for name, module in measured.items()}
    for option in given:
        if not any(hasattr(config, option) for config in configs.values()):
            raise InputError(f"{operation} has no option --{option}")
    for name, module in measured.items():
        with progress_bar(stderr, name) as watch:
            rows, notes = module.measure(configs[name], watch)
        tables = module.tables(rows)
        lines = [*(table.markdown() for table in tables), *(f"{note}\n" for note in notes)]
        lines.append(f"{_provenance(report, configs[name], module.conditions(configs[name]))}\n")
        report["operations"][name] = {
            "native": module.details(),
            "config": asdict(configs[name]),
            "rows": [asdict(row) for row in rows],
            "notes": notes,
            "markdown": "\n".join(lines),
        }
        if not as_json:
            _print_tables(tables, notes)
    report["markdown"] = "\n".join(operation["markdown"] for operation in report["operations"].values())
    if as_json:
        print_json(report)


def _config(module: Any, preset: str, given: dict[str, Any]) -> Any:
    """The preset of an operation with those of the given options that it has."""
    config = module.PRESETS[preset]
    known = {field.name for field in fields(config)}
    return replace(config, **{option: value for option, value in given.items() if option in known})


def _provenance(report: dict[str, Any], config: Any, conditions: str) -> str:
    """One sentence: when, where and how often it was measured."""
    machine = report["environment"]
    commit = f"; commit {machine['commit']}" if machine["commit"] else ""
    return (
        f"Measured {report['date']} by `hexad kernels bench`, the median of {config.rounds} rounds, "
        f"{conditions}, {report['threads']} threads, on {machine['processor']}, {machine['cores']} cores, "
        f"PyTorch {machine['packages']['torch']}{commit}."
    )


def _print_tables(tables: list[Table], notes: list[str]) -> None:
    for made in tables:
        table = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for number, heading in enumerate(made.headings):
            table.add_column(heading, justify="left" if number < made.labels else "right", no_wrap=True)
        for row in made.rows:
            table.add_row(*row)
        stdout.print(made.title, soft_wrap=True)
        print_table(stdout, table)
        stdout.print()
    for note in notes:
        stdout.print(note, soft_wrap=True)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--lengths must be whole numbers with commas between them, got {text!r}") from None
