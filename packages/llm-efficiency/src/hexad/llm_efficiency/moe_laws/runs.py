"""The table of training runs that a law is fitted to, checked at the door."""

import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.llm_efficiency.moe_laws.ranges import Ranges

COLUMNS = ("n_active", "tokens", "experts", "loss")
LEAST_COUNT = 1000  # of parameters and of tokens; less is a count in millions or billions
MOST_LOSS = 100.0  # nats per token; guessing costs the logarithm of the vocabulary, about 11
WANTED = {
    "n_active": f"a count of at least {LEAST_COUNT}, such as 79e6",
    "tokens": f"a count of at least {LEAST_COUNT}, such as 2e9",
    "experts": "a whole number of at least 1 (1 is a dense model)",
    "loss": f"positive and at most {MOST_LOSS:g} nats per token",
}
KINDS = (".csv", ".tsv", ".txt", ".parquet", "")


@dataclass(frozen=True)
class Runs:
    """Training runs, one a row.

    Attributes:
        n_active: N, with embedding and unembedding.
        tokens: D.
        experts: E, 1 for dense models.
        loss: nats per token.
    """

    n_active: Float[np.ndarray, " runs"]
    tokens: Float[np.ndarray, " runs"]
    experts: Float[np.ndarray, " runs"]
    loss: Float[np.ndarray, " runs"]

    @classmethod
    def of(cls, table: Any) -> "Runs":
        """The runs of a data frame (Polars, pandas) or a mapping with the columns of `COLUMNS`.

        Raises:
            InputError: a column is missing, not of numbers, of another length, or holds what no run can
                have; the first such run is named, counted from 1.
        """
        if isinstance(table, Runs):
            return table
        if isinstance(table, str | os.PathLike):
            raise InputError(f"the runs are a path, {str(table)!r}; give read_runs({str(table)!r})")
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", []))
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise InputError(
                f"the runs lack the column{'s' * (len(missing) > 1)} {', '.join(missing)}; wanted are "
                f"{', '.join(COLUMNS)}, found {', '.join(map(str, names)) or 'none'}"
            )
        arrays = {name: _numbers(name, table[name]) for name in COLUMNS}
        lengths = {len(values) for values in arrays.values()}
        if len(lengths) > 1:
            raise InputError(f"the columns of the runs have different lengths: {sorted(lengths)}")
        if lengths == {0}:
            raise InputError("the table has columns but no rows; give a row a run")
        for name, values in arrays.items():
            bad = ~np.isfinite(values)
            if name == "loss":
                bad |= (values <= 0) | (values > MOST_LOSS)
            elif name == "experts":
                bad |= (values < 1) | (values != np.round(values))
            else:
                bad |= values < LEAST_COUNT
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                _refuse(name, row, "missing" if np.isnan(values[row]) else f"{values[row]:g}")
        return cls(**arrays)

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, chosen: Any) -> "Runs":
        return Runs(*(getattr(self, name)[chosen] for name in COLUMNS))

    @property
    def distinct(self) -> int:
        """How many different settings there are; repetitions of one with other seeds count once."""
        return len(np.unique(np.stack([self.n_active, self.tokens, self.experts]), axis=1).T)

    @property
    def ranges(self) -> Ranges:
        """Where the runs lie."""

        def span(values: np.ndarray) -> tuple[float, float]:
            return float(values.min()), float(values.max())

        return Ranges(
            span(self.n_active), span(self.tokens), span(self.experts), span(self.tokens / self.n_active)
        )


def _refuse(name: str, row: int, cell: str) -> None:
    raise InputError(
        f"{name} of run {row + 1} (the first is 1) is {cell}; it must be {WANTED[name]}; mend or drop the row"
    )


def _numbers(name: str, column: Any) -> Float[np.ndarray, " runs"]:
    """A column as floats; the first cell that is no number is named."""
    try:
        return np.array(column, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        for row, cell in enumerate(column):
            try:
                float(cell)
            except (TypeError, ValueError):
                _refuse(name, row, "missing" if cell is None or not str(cell).strip() else repr(cell))
        raise InputError(f"the column {name} of the runs does not hold numbers alone") from None


def read_runs(path: str | Path) -> Runs:
    """The runs in a CSV, TSV or Parquet file with the columns n_active, tokens, experts and loss.

    Columns of text are separated by commas, semicolons or tabs, whichever the header has; lines that begin
    with # are left out.

    Raises:
        InputError: no such file, none that can be read, or see `Runs.of`.
    """
    file = check_file(path, "file of runs")
    kind = file.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{file} is no table that is read here; give a .csv, .tsv or .parquet file")
    try:
        return Runs.of(pl.read_parquet(file) if kind == ".parquet" else _read_text(file))
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{file} cannot be read as a table ({reason})") from None


def _read_text(file: Path) -> pl.DataFrame:
    """The cells of a text file as they stand, so that a bad one can be shown."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError("this is no text in UTF-8; save the table as CSV in UTF-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputError(f"the file is empty; its first line must name the columns: {', '.join(COLUMNS)}")
    separator = max(",;\t", key=lines[0].count)
    wide = next((line for line in lines if line.count(separator) > lines[0].count(separator)), None)
    if wide is not None and '"' not in text:
        raise InputError(
            f"the row {wide[:80]!r} has more cells than the header; write numbers with a decimal point and "
            "without separators of thousands"
        )
    frame = pl.read_csv(io.StringIO("\n".join(lines)), separator=separator, infer_schema=False)
    return frame.rename(str.strip)


def choose_holdout(runs: Runs, holdout: str | Bool[np.ndarray, " runs"] | None) -> Bool[np.ndarray, " runs"]:
    """Which runs are held out: True where they are kept from the fit.

    Args:
        holdout: `"lowest:30"` for the 30 runs of lowest loss (the paper's choice), `"longest:30"` for those
            of most tokens, `"largest:30"` for those of most active parameters, `"lowest:12%"` and so on for a
            share, `"none"` or None, or a mask.

    Raises:
        InputError: it is none of these, or holds out all runs.
    """
    if holdout is None or (isinstance(holdout, str) and holdout == "none"):
        return np.zeros(len(runs), dtype=bool)
    if not isinstance(holdout, str):
        mask = np.asarray(holdout)
        if mask.dtype != bool or mask.shape != (len(runs),):
            raise InputError(
                f"holdout is an array of {mask.dtype} of shape {mask.shape}; a mask is of bool, one a run "
                f"({len(runs)})"
            )
        return mask
    orders = {"lowest": runs.loss, "longest": -runs.tokens, "largest": -runs.n_active}
    match = re.fullmatch(r"(lowest|longest|largest):(?:(\d+)|(\d+(?:\.\d+)?)%)", holdout)
    if match is None:
        raise InputError(f"holdout is {holdout!r}; write lowest:30, longest:12%, largest:5 or none")
    count = int(match[2]) if match[2] else round(len(runs) * float(match[3]) / 100)
    if count >= len(runs):
        raise InputError(f"holdout {holdout!r} keeps none of the {len(runs)} runs to fit; hold out fewer")
    mask = np.zeros(len(runs), dtype=bool)
    mask[np.argsort(orders[match[1]], kind="stable")[:count]] = True
    return mask
