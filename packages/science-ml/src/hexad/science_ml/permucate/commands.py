"""The command line: `hexad science-ml permucate data.csv --treatment T --outcome Y`."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable
from typer.core import TyperGroup

from hexad.core.environment import cores
from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar, warnings_as_lines
from hexad.core.validation import check_count


class _FileOrCommand(TyperGroup):
    """A group in which a file name stands for `rank FILE`, since ranking is what the method is for."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; for a file's name, `rank` with the file as its first argument."""
        found = super().get_command(ctx, cmd_name)
        if found is not None or not (Path(cmd_name).suffix or Path(cmd_name).exists()):
            return found
        rank: Any = super().get_command(ctx, "rank")
        parse = rank.parse_args
        # A click command holds no state but this: the group drops the name it resolved, and rank needs it.
        rank.parse_args = lambda context, arguments: parse(context, [cmd_name, *arguments])
        return rank


app = typer.Typer(
    cls=_FileOrCommand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="PermuCATE: rank the covariates that drive a treatment effect, with p-values and intervals.\n\n"
    "`permucate data.csv --treatment T --outcome Y` is short for `permucate rank data.csv ...`.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Family = Literal["linear", "forest", "boosting"]


@app.callback()
def _group() -> None:
    """Keep `rank` a command of its own although it is the only one."""


@app.command()
def rank(
    table: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet file, one row a person.")],
    treatment: Annotated[str, typer.Option("--treatment", "-t", help="Column of the treatment.")],
    outcome: Annotated[str, typer.Option("--outcome", "-y", help="Column of the outcome.")],
    covariates: Annotated[str, typer.Option(help="Columns, by commas. Default: all others.")] = "",
    drop: Annotated[str, typer.Option(help="Columns that are no covariates, such as an id.")] = "",
    treated: Annotated[
        str | None, typer.Option(help="Value that means treated, if the column holds not 0 and 1.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Covariates measured together: name=a,b,c. May be given several times."),
    ] = None,
    missing: Annotated[
        Literal["refuse", "drop", "impute"],
        typer.Option(help="Rows with gaps: refuse, drop them, or impute covariates."),
    ] = "refuse",
    effect: Annotated[
        Family, typer.Option(help="Model of the effect; linear sees linear modification alone.")
    ] = "linear",
    nuisances: Annotated[Family, typer.Option(help="Models of outcome and propensity.")] = "forest",
    risk: Annotated[
        Literal["pseudo_outcome", "r_risk"], typer.Option(help="DR-loss or R-loss.")
    ] = "pseudo_outcome",
    permutations: Annotated[int, typer.Option(help="Draws of each covariate.")] = 50,
    folds: Annotated[int, typer.Option(help="Folds of the cross-fitting.")] = 5,
    repeats: Annotated[int, typer.Option(help="Repetitions with other folds.")] = 1,
    adjust: Annotated[
        Literal["none", "holm", "bh"], typer.Option(help="p-values for many tests at once.")
    ] = "none",
    loco: Annotated[bool, typer.Option("--loco", help="Show LOCO beside it, from the same folds.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of folds, models and draws.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Processes; default all cores.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path(
        "permucate-report"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Rank the covariates that drive a treatment effect.

    Prints the ranking with 95 % intervals and one-sided p-values, and writes importances.csv, importances.png
    and settings.json to the folder. The treatment must be as good as random given the covariates.

    Examples:

        hexad science-ml permucate trial.csv --treatment arm --treated drug --outcome weight

        hexad science-ml permucate trial.csv -t arm -y weight --group genes=g1,g2 --effect boosting
    """
    import polars as pl

    from hexad.core.files import atomic_path, writable_folder, write_json
    from hexad.core.plots import save_figure
    from hexad.science_ml.permucate.estimator import PermuCATE
    from hexad.science_ml.permucate.figures import draw_importances
    from hexad.science_ml.permucate.learners import DRLearner, classifier_of, regressor_of
    from hexad.science_ml.permucate.tables import read_table

    data = read_table(
        table,
        treatment,
        outcome,
        covariates=_split(covariates),
        drop=_split(drop),
        treated=treated,
        missing=missing,
    )
    _check_report_folder(out)
    check_count("--permutations", permutations)
    check_count("--folds", folds, 2)
    check_count("--repeats", repeats)
    if jobs is not None:
        check_count("--jobs", jobs)
    learner = DRLearner(regressor_of(nuisances), classifier_of(nuisances), regressor_of(effect))
    settings = PermuCATE(
        learner,
        risk=risk,
        n_permutations=permutations,
        cv=folds,
        n_repeats=repeats,
        groups=_groups(group or []),
        n_jobs=cores() if jobs is None else jobs,
        random_state=seed,
    )
    measures = ("permucate", "loco") if loco else ("permucate",)
    with progress_bar(stderr, "fitting", quiet=as_json) as tell, warnings_as_lines(stderr) as warned:
        found = settings.measure(
            data.covariates, data.outcome, data.treatment, measures,
            lambda done, total: tell(done / total, f"{done} of {total} fits"),
        )  # fmt: skip
    writable_folder(out, "report folder")
    frame = found["permucate"].summary(adjustment=adjust)
    if loco:
        other = found["loco"]
        order = [other.names.index(name) for name in frame["variable"]]
        frame = frame.with_columns(
            pl.Series("loco", other.importances[order]), pl.Series("loco_p_value", other.pvalues[order])
        )
    files = [out / "importances.csv", out / "importances.png", out / "settings.json"]
    with atomic_path(files[0]) as temporary:
        frame.write_csv(temporary)
    with warnings_as_lines(stderr) as drawn:
        save_figure(draw_importances(found["permucate"], adjustment=adjust), files[1])
    summary = {
        "rows": len(data.outcome),
        "treated": int(data.treatment.sum()),
        "notes": list(data.notes),
        "warnings": warned + drawn,
        "settings": {
            "table": str(table), "treatment": treatment, "treated": treated, "outcome": outcome,
            "covariates": data.covariates.columns, "effect": effect, "nuisances": nuisances, "risk": risk,
            "permutations": permutations, "folds": folds, "repeats": repeats, "missing": missing,
            "groups": _groups(group or []), "adjust": adjust, "loco": loco, "seed": seed,
            "version": version("hexad-science-ml"),
        },
    }  # fmt: skip
    write_json(files[2], summary)
    if as_json:
        print_json(summary | {"importances": frame.to_dicts(), "files": [str(path) for path in files]})
        return
    for note in data.notes:
        stdout.print(note, markup=False)
    _print_ranking(frame, len(data.outcome), int(data.treatment.sum()))
    stdout.print(f"Files: {', '.join(str(path) for path in files)}", soft_wrap=True, markup=False)


def _print_ranking(frame: Any, rows: int, treated: int) -> None:
    shown = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("")
    shown.add_column("covariate", overflow="fold", min_width=9)
    shown.add_column("importance", justify="right", no_wrap=True, min_width=10)
    wide = stdout.width >= 60  # a narrower terminal shows no interval; the file has it
    if wide:
        shown.add_column("95 % interval", justify="right", no_wrap=True)
    rest = [
        name
        for name in frame.columns
        if name not in ("variable", "importance", "standard_error", "low", "high")
    ]
    for name in rest:
        shown.add_column(name.replace("_", " ").replace("p value", "p"), justify="right", no_wrap=True)
    for place, row in enumerate(frame.iter_rows(named=True), start=1):
        name = row["variable"].replace("[", "\\[")
        numbers = [f"{row[key]:.4f}" if "p_" in key else f"{row[key]:.3g}" for key in rest]
        interval = [f"[{row['low']:.3g}, {row['high']:.3g}]".replace("[", "\\[", 1)] if wide else []
        name = f"[bold]{name}[/]" if row.get("p_adjusted", row["p_value"]) < 0.05 else name
        shown.add_row(str(place), name, f"{row['importance']:.3g}", *interval, *numbers)
    stdout.print(shown)
    which = "adjusted p" if "p_adjusted" in frame.columns else "p"
    stdout.print(f"{rows} rows, {treated} treated; bold: {which} < 0.05 (one-sided)")


def _check_report_folder(out: Path) -> None:
    """Refuse a folder that cannot be written before minutes are spent; it is made when there is a report."""
    if out.exists() and not out.is_dir():
        raise InputError(f"report folder {out} is a file; name a folder")
    if out.is_dir() and not os.access(out, os.W_OK):
        raise InputError(f"report folder {out} cannot be written; name one that can")
    nearest = next(parent for parent in (out, *out.absolute().parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        raise InputError(f"report folder {out} cannot be made in {nearest}; name one that can")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _groups(options: list[str]) -> dict[str, list[str]] | None:
    groups: dict[str, list[str]] = {}
    for option in options:
        name, equals, members = option.partition("=")
        if not equals or not name.strip() or not _split(members):
            raise InputError(f"--group {option!r} is not understood; write name=column,column")
        if name.strip() in groups:
            raise InputError(f"--group {name.strip()!r} is given twice; list all its columns at once")
        groups[name.strip()] = _split(members)
    return groups or None
