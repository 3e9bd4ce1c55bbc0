"""The table of training runs that a law is fitted to, checked at the door."""

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
                have; the first such row is named, counted from 0.
        """
        if isinstance(table, Runs):
            return table
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", []))
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise InputError(
                f"the runs lack the column{'s' * (len(missing) > 1)} {', '.join(missing)}; wanted are "
                f"{', '.join(COLUMNS)}, found {', '.join(map(str, names)) or 'none'}"
            )
        arrays = {}
        for name in COLUMNS:
            try:
                arrays[name] = np.array(table[name], dtype=np.float64).reshape(-1)
            except (TypeError, ValueError):
                raise InputError(f"the column {name} of the runs does not hold numbers alone") from None
        lengths = {len(values) for values in arrays.values()}
        if len(lengths) > 1:
            raise InputError(f"the columns of the runs have different lengths: {sorted(lengths)}")
        for name, values in arrays.items():
            low = 1.0 if name == "experts" else 0.0
            bad = ~np.isfinite(values) | ((values < low) if low else (values <= low))
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                wanted = "at least 1 (1 is a dense model)" if low else "positive"
                raise InputError(
                    f"{name} of run {row} is {values[row]:g}; it must be finite and {wanted}; mend or drop "
                    "the row"
                )
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


def read_runs(path: str | Path) -> Runs:
    """The runs in a CSV, TSV or Parquet file with the columns n_active, tokens, experts and loss.

    Raises:
        InputError: no such file, none that can be read, or see `Runs.of`.
    """
    file = check_file(path, "file of runs")
    try:
        if file.suffix == ".parquet":
            frame = pl.read_parquet(file)
        else:
            separator = "\t" if file.suffix == ".tsv" else ","
            frame = pl.read_csv(file, separator=separator, infer_schema_length=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{file} cannot be read as a table ({reason})") from None
    return Runs.of(frame)


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
    key, _, count = holdout.partition(":")
    if count.endswith("%") and count[:-1].isdigit():
        count = str(round(len(runs) * int(count[:-1]) / 100))
    orders = {"lowest": runs.loss, "longest": -runs.tokens, "largest": -runs.n_active}
    if key not in orders or not count.isdigit():
        raise InputError(f"holdout is {holdout!r}; write lowest:30, longest:12%, largest:5 or none")
    if int(count) >= len(runs):
        raise InputError(f"holdout {holdout!r} keeps none of the {len(runs)} runs to fit; hold out fewer")
    mask = np.zeros(len(runs), dtype=bool)
    mask[np.argsort(orders[key], kind="stable")[: int(count)]] = True
    return mask
