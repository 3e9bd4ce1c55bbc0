"""Covariates of any table, as numbers: what is permuted, and what models are handed.

`Covariates.values` has one column a covariate; text is held as the number of its level. Permutations and
draws happen there. Models get `Covariates.table(values)`: the same kind of table that came in, text unfolded
into one indicator column a level (or, with `encode=False`, as it came, for pipelines that encode).
"""

import numbers as number_types
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import near_miss

MAX_LEVELS = 50
"""Text with more levels is an identifier or free text, and no covariate."""

Kind = Literal["numpy", "pandas", "polars"]


@dataclass(frozen=True)
class Covariates:
    """n rows of p covariates.

    Attributes:
        names: of the covariates.
        values: (n, p); text as the number of its level.
        levels: the levels of each text covariate, by its position.
        kind: the kind of table that came in and that models get.
        encode: whether models get text as indicator columns.
    """

    names: tuple[str, ...]
    values: Float[np.ndarray, "n p"]
    levels: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    kind: Kind = "numpy"
    encode: bool = True

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def design_columns(self) -> list[Int[np.ndarray, " k"]]:
        """The columns of `design` that each covariate has."""
        widths = [len(self.levels[j]) if j in self.levels else 1 for j in range(len(self.names))]
        ends = np.cumsum(widths)
        return [np.arange(end - width, end) for end, width in zip(ends, widths, strict=True)]

    @cached_property
    def design_names(self) -> list[str]:
        """Names of the columns of `design`, such as `age` and `city=Paris`."""
        return [
            label
            for j, name in enumerate(self.names)
            for label in ([f"{name}={level}" for level in self.levels[j]] if j in self.levels else [name])
        ]

    def design(self, values: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m d"]:
        """Rows as numbers alone: text as one 0/1 column a level."""
        if not self.levels:
            return values
        parts = [
            (values[:, [j]] == np.arange(len(self.levels[j]))).astype(float)
            if j in self.levels
            else values[:, [j]]
            for j in range(len(self.names))
        ]
        return np.hstack(parts)

    def table(self, values: Float[np.ndarray, "m p"]) -> Any:
        """Rows as models get them."""
        if self.encode or not self.levels:
            matrix, names = self.design(values), self.design_names
            if self.kind == "numpy":
                return matrix
            columns: dict[str, Any] = {name: matrix[:, j] for j, name in enumerate(names)}
        else:
            columns = {
                name: np.array(self.levels[j])[values[:, j].astype(int)] if j in self.levels else values[:, j]
                for j, name in enumerate(self.names)
            }
        if self.kind == "pandas":
            return sys.modules["pandas"].DataFrame(columns)
        return pl.DataFrame(columns)

    def without(self, block: Int[np.ndarray, " k"]) -> "Covariates":
        """The covariates less those at these positions."""
        kept = np.setdiff1d(np.arange(len(self.names)), block)
        levels = {place: self.levels[j] for place, j in enumerate(kept) if j in self.levels}
        names = tuple(self.names[j] for j in kept)
        return Covariates(names, self.values[:, kept], levels, self.kind, self.encode)

    def read_like(self, X: Any) -> Float[np.ndarray, "m p"]:
        """The values of other rows of the same covariates.

        Raises:
            InputError: see `read_covariates`; or the columns differ, or a text has a level unknown here.
        """
        other = read_covariates(X, self.encode)
        if other.names != self.names:
            raise InputError(f"X has the columns {_few(other.names)}, but X_train {_few(self.names)}")
        values = other.values.copy()
        for j, name in enumerate(self.names):
            if (j in self.levels) != (j in other.levels):
                raise InputError(f"column {name!r} is text in one of X and X_train and numbers in the other")
            if j in self.levels:
                unknown = sorted(set(other.levels[j]) - set(self.levels[j]))
                if unknown:
                    raise InputError(f"column {name!r} has the level {unknown[0]!r}, which X_train has not")
                codes = np.array([self.levels[j].index(level) for level in other.levels[j]])
                values[:, j] = codes[values[:, j].astype(int)]
        return values

    def constant(self) -> Bool[np.ndarray, " p"]:
        """Which covariates have the same value in all rows."""
        return (self.values == self.values[0]).all(axis=0)

    def categorical(self, which: "str | Sequence[str]", max_cardinality: int) -> Bool[np.ndarray, " p"]:
        """Which covariates are drawn from their classes and not permuted as residuals.

        Args:
            which: `"auto"` for text and for numbers with at most `max_cardinality` values; or names (text
                is always categorical).
            max_cardinality: the largest number of values that `"auto"` calls categorical.
        """
        if isinstance(which, str) and which != "auto":
            raise InputError(f"categorical is {which!r}; give 'auto' or a list of names")
        text = np.array([j in self.levels for j in range(len(self.names))])
        if isinstance(which, str):
            few = [len(np.unique(column)) <= max_cardinality for column in self.values.T]
            return text | np.array(few)
        chosen = [self.position(name, "in categorical") for name in which]
        return text | np.isin(np.arange(len(self.names)), chosen)

    def position(self, name: str, where: str) -> int:
        """The position of a name.

        Raises:
            InputError: no covariate is called so.
        """
        if name not in self.names:
            raise InputError(f"no covariate is called {name!r} ({where}); {near_miss(str(name), self.names)}")
        return self.names.index(name)

    def blocks(
        self, groups: Mapping[str, Sequence[str]] | None
    ) -> tuple[tuple[str, ...], list[Int[np.ndarray, " k"]]]:
        """Names and positions of what is measured: the groups, and each covariate that is in none.

        Raises:
            InputError: groups overlap, are empty, or name what is not there.
        """
        owner: dict[int, str] = {}
        for group, members in (groups or {}).items():
            if isinstance(members, str) or not len(members):
                raise InputError(f"group {group!r} must be a list of one covariate or more, not {members!r}")
            if group in self.names and list(members) != [group]:
                raise InputError(f"group {group!r} has the name of a covariate; name it otherwise")
            for member in members:
                j = self.position(member, f"in group {group!r}")
                if j in owner:
                    raise InputError(f"covariate {member!r} is in two groups, {owner[j]!r} and {group!r}")
                owner[j] = group
        names = list(dict.fromkeys(owner.get(j, name) for j, name in enumerate(self.names)))
        where = [owner.get(j, name) for j, name in enumerate(self.names)]
        return tuple(names), [np.array([j for j, at in enumerate(where) if at == name]) for name in names]


def read_covariates(X: Any, encode: bool = True) -> Covariates:
    """Covariates of a NumPy array, a pandas or a Polars frame.

    Numbers and booleans stay numbers; text, categories and enumerations become levels in sorted order.

    Raises:
        InputError: the table is empty or not two-dimensional, holds missing or infinite values, dates or
            other types, or text with more than 50 levels.
    """
    module = type(X).__module__.split(".")[0]
    if isinstance(X, pl.LazyFrame):
        raise InputError("X is a LazyFrame; pass X.collect()")
    if hasattr(X, "toarray"):
        raise InputError("X is a sparse matrix; pass X.toarray()")
    if np.iscomplexobj(X):
        raise InputError("X holds complex numbers; covariates must be real")
    if module in ("pandas", "polars") and hasattr(X, "columns"):
        names = [str(name) for name in X.columns]
        if len(set(names)) < len(names):
            raise InputError(f"two columns have one name: {sorted({n for n in names if names.count(n) > 1})}")
        columns = [_column(name, X[label]) for name, label in zip(names, X.columns, strict=True)]
        kind: Kind = "pandas" if module == "pandas" else "polars"
    else:
        try:
            matrix = np.asarray(X, dtype=float)
        except (TypeError, ValueError):
            raise InputError("X holds text; pass it as a pandas or Polars frame") from None
        if matrix.ndim != 2:
            raise InputError(f"X has the shape {matrix.shape}; it must be (rows, covariates)")
        names = [f"x{j}" for j in range(matrix.shape[1])]
        columns = [(column, None) for column in matrix.T]
        kind = "numpy"
    if not columns or not len(columns[0][0]):
        raise InputError("X is empty; give rows and at least one covariate")
    values = np.column_stack([column for column, _ in columns]).astype(float)
    _refuse_gaps(names, values)
    levels = {j: found for j, (_, found) in enumerate(columns) if found is not None}
    return Covariates(tuple(names), values, levels, kind, encode)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _column(name: str, series: Any) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """A column as numbers, NaN where missing, and its levels where it is text."""
    if isinstance(series, pl.Series):
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            return series.cast(pl.Float64).fill_null(np.nan).to_numpy(), None
        text = series.dtype in (pl.String, pl.Categorical, pl.Enum)
        missing = series.is_null().to_numpy()
        dtype = str(series.dtype)
    else:
        dtype = str(series.dtype)
        missing = series.isna().to_numpy()
        if getattr(series.dtype, "kind", "O") in "biuf":
            return series.astype(float).to_numpy(dtype=float, na_value=np.nan), None
        if dtype == "object" and all(isinstance(value, number_types.Real) for value in series[~missing]):
            return series.to_numpy(dtype=float, na_value=np.nan), None
        text = dtype in ("object", "category") or dtype.startswith(("str", "string"))
    if not text:
        raise InputError(f"column {name!r} has the type {dtype}; make it numbers or text, or leave it out")
    present = np.array(
        [str(value) for value, gap in zip(series, missing, strict=True) if not gap], dtype=object
    )
    levels, codes = np.unique(present.astype(str), return_inverse=True)
    if len(levels) > MAX_LEVELS:
        raise InputError(
            f"column {name!r} holds text with {len(levels)} levels, more than {MAX_LEVELS}; leave it out, or "
            "merge its levels"
        )
    numbers = np.full(len(missing), np.nan)
    numbers[~missing] = codes
    return numbers, tuple(str(level) for level in levels)


def _refuse_gaps(names: Sequence[str], values: Float[np.ndarray, "n p"]) -> None:
    missing = np.isnan(values).sum(axis=0)
    if missing.any():
        listed = ", ".join(f"{names[j]!r} ({missing[j]} rows)" for j in np.flatnonzero(missing)[:5])
        more = " ..." if (missing > 0).sum() > 5 else ""
        raise InputError(f"X holds missing values in {listed}{more}; drop those rows or impute them first")
    infinite = ~np.isfinite(values).all(axis=0)
    if infinite.any():
        raise InputError(f"X holds infinite values in {names[int(np.argmax(infinite))]!r}; drop those rows")
