"""A user's table, from a file: its treatment, outcome and covariates."""

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_file, near_miss

Missing = Literal["refuse", "drop", "impute"]
GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")


@dataclass(frozen=True)
class Table:
    """What a file holds.

    Attributes:
        covariates: a frame of n rows; outcome: (n,); treatment: 0 or 1, (n,).
        notes: what was done to the rows, for people.
    """

    covariates: pl.DataFrame
    outcome: Float[np.ndarray, " n"]
    treatment: Int[np.ndarray, " n"]
    notes: tuple[str, ...]


def read_table(
    path: Path,
    treatment: str,
    outcome: str,
    *,
    covariates: Sequence[str] = (),
    drop: Sequence[str] = (),
    treated: str | None = None,
    missing: Missing = "refuse",
) -> Table:
    """Read a CSV, TSV or Parquet file.

    Args:
        path: the file; its first line names the columns.
        treatment, outcome: names of columns.
        covariates: names of columns; default all others.
        drop: columns that are no covariates.
        treated: the value of the treatment column that means treated, where it does not hold 0 and 1.
        missing: `"refuse"` rows with gaps, `"drop"` them, or `"impute"` covariates by their median or most
            frequent level. Rows without treatment or outcome are never imputed.

    Raises:
        InputError: the file cannot be read, a column is not there, or the treatment is not binary.
    """
    check_choice("way with missing values", missing, ("refuse", "drop", "impute"))
    frame = _read(check_file(path, "table"))
    if treatment == outcome:
        raise InputError(f"treatment and outcome are both {treatment!r}; name two columns")
    for what, name in (
        ("treatment", treatment),
        ("outcome", outcome),
        *(("covariate", n) for n in covariates),
    ):
        if name not in frame.columns:
            separators = [s for s in ";\t|" if len(frame.columns) == 1 and s in frame.columns[0]]
            hint = near_miss(name, frame.columns)
            if separators:
                hint = f"its columns seem to be parted by {separators[0]!r}: save it with commas"
            raise InputError(f"{path} has no column {name!r} ({what}); {hint}")
    for name in drop:
        if name not in frame.columns:
            raise InputError(f"{path} has no column {name!r} to drop; {near_miss(name, frame.columns)}")
    for option, names in (("--covariates", covariates), ("--drop", drop)):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise InputError(f"{option} names {', '.join(twice)} twice; name each column once")
    kept = list(covariates) or [name for name in frame.columns if name not in (treatment, outcome)]
    kept = [name for name in kept if name not in drop]
    if treatment in kept or outcome in kept:
        raise InputError("the treatment or outcome is among the covariates; leave it out")
    if not kept:
        raise InputError(f"{path} has no covariates besides {treatment!r} and {outcome!r}")
    frame = frame.select(treatment, outcome, *kept)
    floats = [name for name in frame.columns if frame[name].dtype.is_float()]
    frame = frame.with_columns(pl.col(name).fill_nan(None) for name in floats)
    frame, notes = _without_gaps(frame, treatment, outcome, kept, missing)
    if not frame[outcome].dtype.is_numeric() and frame[outcome].dtype != pl.Boolean:
        raise InputError(f"the outcome {outcome!r} holds text ({frame[outcome][0]!r}); it must be numbers")
    return Table(
        frame.select(kept),
        frame[outcome].cast(pl.Float64).to_numpy(),
        _binary(frame[treatment], treated),
        tuple(notes),
    )


def _read(path: Path) -> pl.DataFrame:
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            frame = pl.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
            _check_header(path, separator)
            frame = pl.read_csv(path, separator=separator, null_values=list(GAPS), infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{path} is no readable CSV, TSV or Parquet file ({reason})") from None
    if frame.is_empty():
        raise InputError(f"{path} has no rows")
    return frame


def _check_header(path: Path, separator: str) -> None:
    """Refuse what a reader would rename without a word: columns without a name, or of the same name.

    Raises:
        InputError: see above, or a text that is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file, delimiter=separator), [])
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; save it as CSV in UTF-8") from None
    twice = sorted({name for name in names if names.count(name) > 1})
    if "" in names and len(names) > 1:
        place = names.index("") + 1
        raise InputError(f"{path} has no name for its column {place} (a row number?); name it or take it out")
    if twice:
        raise InputError(f"{path} has several columns called {', '.join(twice)}; rename them")


def _without_gaps(
    frame: pl.DataFrame, treatment: str, outcome: str, covariates: Sequence[str], missing: Missing
) -> tuple[pl.DataFrame, list[str]]:
    counts = {name: frame[name].null_count() for name in frame.columns if frame[name].null_count()}
    if not counts:
        return frame, []
    listed = ", ".join(f"{name} ({count})" for name, count in list(counts.items())[:6])
    listed += ", ..." if len(counts) > 6 else ""
    if missing == "refuse":
        raise InputError(
            f"missing values in {listed}; pass --missing drop to leave those rows out, or --missing "
            "impute to fill covariates in"
        )
    rows = len(frame)
    frame = frame.drop_nulls([treatment, outcome] if missing == "impute" else None)
    left_out = rows - len(frame)
    notes = [f"{left_out} of {rows} rows left out for missing values"] if left_out else []
    if frame.is_empty():
        raise InputError(f"no row is without gaps ({listed}); leave columns out or --missing impute")
    gaps = [name for name in covariates if frame[name].null_count()]
    for name in gaps:
        column = frame[name]
        if column.null_count() == len(column):
            raise InputError(f"column {name!r} holds nothing at all; leave it out with --drop {name}")
        if column.dtype.is_numeric():
            frame = frame.with_columns(column.cast(pl.Float64).fill_null(column.median()))
        else:
            frame = frame.with_columns(column.fill_null(column.drop_nulls().mode().sort()[0]))
    if gaps:
        notes.append(f"filled in by median or most frequent level: {', '.join(gaps)}")
    return frame, notes


def _binary(column: pl.Series, treated: str | None) -> Int[np.ndarray, " n"]:
    """The treatment as 0 and 1."""
    values = sorted(column.unique().to_list(), key=str)
    if len(values) != 2:
        shown = ", ".join(str(value) for value in values[:5]) + (", ..." if len(values) > 5 else "")
        raise InputError(f"treatment {column.name!r} holds {len(values)} values ({shown}); it must hold two")
    if treated is not None:
        matches = [value for value in values if str(value) == treated]
        if not matches:
            raise InputError(f"treatment {column.name!r} holds {values[0]} and {values[1]}, not {treated!r}")
        return (column == matches[0]).cast(pl.Int64).to_numpy()
    if column.dtype != pl.Boolean and set(values) != {0, 1}:
        raise InputError(
            f"treatment {column.name!r} holds {values[0]} and {values[1]}; say which is treated, such as "
            f"--treated {shlex.quote(str(values[1]))}"
        )
    return column.cast(pl.Int64).to_numpy()
