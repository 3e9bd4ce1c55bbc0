"""Draws of covariates from their law given all others: the conditional permutation.

Continuous covariates: prediction from the others plus the residuals of the same rows, permuted. Categorical
ones: draws from predicted class probabilities, since permuted residuals would leave the classes. A block of
several is drawn jointly: residual rows move together, then each categorical member is drawn given the members
before it. Models are fitted to training rows; only residuals are taken from test rows. Chamma et al. 2023.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning

from hexad.core.errors import InputError
from hexad.science_ml.permucate.covariates import Covariates
from hexad.science_ml.permucate.learners import classifier_of
from hexad.science_ml.permucate.ridge import BlockRidge, regress_blocks


@dataclass(frozen=True)
class Noise:
    """The randomness of B draws over n rows, the same for every covariate.

    Attributes:
        orders: (B, n), permutations of the rows.
        uniforms: (k, B, n) in [0, 1), one layer a categorical member of the largest block.
    """

    orders: Int[np.ndarray, "b n"]
    uniforms: Float[np.ndarray, "k b n"]

    @classmethod
    def draw(cls, n: int, copies: int, layers: int, seed: Any) -> "Noise":
        """Independent permutations and uniforms."""
        rng = np.random.default_rng(seed)
        orders = rng.permuted(np.tile(np.arange(n), (copies, 1)), axis=1)
        return cls(orders, rng.random((layers, copies, n)))


@dataclass(frozen=True)
class Sampler:
    """Draws one block of covariates given the others.

    Attributes:
        block: positions of its covariates.
        continuous: positions of the continuous ones; `mean` gives their residuals.
        classifiers: position and fitted classifier of each categorical one, in the order of drawing.
    """

    covariates: Covariates
    block: Int[np.ndarray, " k"]
    continuous: Int[np.ndarray, " c"]
    mean: "BlockRidge | list[Any] | None"
    classifiers: list[tuple[int, Any]]

    def residuals(self, values: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n c"]:
        """What the others do not explain of the continuous members, at these rows."""
        if isinstance(self.mean, BlockRidge):
            design = self.covariates.design_columns
            own = np.concatenate([design[j] for j in self.block])
            wanted = np.concatenate([design[j] for j in self.continuous])
            return self.mean.residuals(self.covariates.design(values))[:, np.isin(own, wanted)]
        others = _features(self.covariates, values, self.block, [])
        predicted = [np.ravel(model.predict(others)) for model in self.mean or []]
        return values[:, self.continuous] - np.column_stack(predicted)

    def draw(self, values: Float[np.ndarray, "n p"], noise: Noise) -> Float[np.ndarray, "b n k"]:
        """B draws of the block for each row, in the order of `block`."""
        copies, n = noise.orders.shape
        drawn = np.empty((copies, n, len(self.block)))
        if len(self.continuous):
            residuals = self.residuals(values)
            fitted = values[:, self.continuous] - residuals
            drawn[:, :, np.isin(self.block, self.continuous)] = fitted + residuals[noise.orders]
        seen = list(self.continuous)
        for (j, classifier), uniform in zip(self.classifiers, noise.uniforms, strict=False):
            if seen:
                rows = np.tile(values, (copies, 1))
                rows[:, seen] = drawn[:, :, np.isin(self.block, seen)].reshape(copies * n, -1)
            else:
                rows = values
            chances = classifier.predict_proba(_features(self.covariates, rows, self.block, seen))
            ends = np.cumsum(chances, axis=1).reshape(-1, n, chances.shape[1])
            # The last end may be 1 - 1e-16: counting the others alone keeps the index in range.
            chosen = (uniform[:, :, None] >= ends[..., :-1]).sum(axis=-1)
            drawn[:, :, np.searchsorted(self.block, j)] = np.asarray(classifier.classes_, dtype=float)[chosen]
            seen = sorted([*seen, j])
        return drawn


def fit_samplers(
    covariates: Covariates,
    values: Float[np.ndarray, "n p"],
    blocks: Sequence[Int[np.ndarray, " k"]],
    categorical: Bool[np.ndarray, " p"],
    imputer: Any = "auto",
) -> list[Sampler]:
    """A sampler of each block, fitted to training rows.

    Args:
        covariates: what the columns are.
        values: (n, p), training rows.
        blocks: positions of the covariates of each block, ascending.
        categorical: which covariates are drawn from classes.
        imputer: `"auto"` for closed-form ridge and logistic regression; a regressor or classifier, which
            replaces the one of its kind; or a list with one of the right kind a block.

    Raises:
        InputError: the list has another length, or an imputer of the wrong kind.
    """
    given = _imputers(imputer, len(blocks))
    regressions: list[BlockRidge] | None = None
    if any(models[0] is None and not categorical[b].all() for models, b in zip(given, blocks, strict=True)):
        own = [np.concatenate([covariates.design_columns[j] for j in block]) for block in blocks]
        regressions = regress_blocks(covariates.design(values), own)
    samplers = []
    for place, (block, (regressor, classifier)) in enumerate(zip(blocks, given, strict=True)):
        continuous = block[~categorical[block]]
        others = _features(covariates, values, block, [])
        mean: BlockRidge | list[Any] | None = None
        if len(continuous) and regressor is None:
            mean = regressions[place] if regressions else None
        elif len(continuous) and others.shape[1]:
            mean = [clone(regressor).fit(others, values[:, j]) for j in continuous]
        elif len(continuous):
            mean = [_Mean(values[:, j]) for j in continuous]
        seen = list(continuous)
        fitted = []
        for j in block[categorical[block]]:
            features = _features(covariates, values, block, seen)
            fitted.append((int(j), _fit_classifier(classifier, features, values[:, j])))
            seen = sorted([*seen, int(j)])
        samplers.append(Sampler(covariates, block, continuous, mean, fitted))
    return samplers


class _Mean:
    """The prediction where there are no other covariates."""

    def __init__(self, column: Float[np.ndarray, " n"]) -> None:
        self.mean = float(column.mean())

    def predict(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        return np.full(len(X), self.mean)


class _Shares:
    """Class probabilities that depend on nothing: no other covariates, or a single class."""

    def __init__(self, column: Float[np.ndarray, " n"]) -> None:
        self.classes_, counts = np.unique(column, return_counts=True)
        self.shares = counts / len(column)

    def predict_proba(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        return np.tile(self.shares, (len(X), 1))


def _features(
    covariates: Covariates,
    values: Float[np.ndarray, "n p"],
    block: Sequence[int] | np.ndarray,
    seen: Sequence[int],
) -> Float[np.ndarray, "n d"]:
    """The design of all covariates but the block's, and of those of its members that are `seen`."""
    left_out = np.setdiff1d(block, np.asarray(seen, dtype=int))
    kept = np.ones(sum(len(columns) for columns in covariates.design_columns), dtype=bool)
    for j in left_out:
        kept[covariates.design_columns[j]] = False
    return covariates.design(values)[:, kept]


def _fit_classifier(
    classifier: Any, features: Float[np.ndarray, "n d"], column: Float[np.ndarray, " n"]
) -> Any:
    if features.shape[1] == 0 or (column == column[0]).all():
        return _Shares(column)
    with warnings.catch_warnings():
        # Where others separate a class the slopes grow without end; its chances are right long before.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # Classes may be fractions, which scikit-learn takes for a regression's target.
        model = classifier_of("linear") if classifier is None else clone(classifier)
        labels, codes = np.unique(column, return_inverse=True)
        return _Labelled(model.fit(features, codes), labels)


@dataclass(frozen=True)
class _Labelled:
    """A classifier of codes that knows the values they stand for."""

    model: Any
    labels: Float[np.ndarray, " c"]

    @property
    def classes_(self) -> Float[np.ndarray, " c"]:
        return self.labels[np.asarray(self.model.classes_)]

    def predict_proba(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
        return self.model.predict_proba(X)


def _imputers(imputer: Any, n_blocks: int) -> list[tuple[Any, Any]]:
    """The regressor and the classifier of each block, None for the default."""
    if isinstance(imputer, str):
        if imputer != "auto":
            raise InputError(f"imputer is {imputer!r}; give 'auto', an estimator or a list of them")
        return [(None, None)] * n_blocks
    listed = list(imputer) if isinstance(imputer, (list, tuple)) else [imputer] * n_blocks
    if len(listed) != n_blocks:
        raise InputError(f"imputer lists {len(listed)} estimators for {n_blocks} covariates or groups")
    pairs = []
    for one in listed:
        if one is not None and not hasattr(one, "fit"):
            raise InputError(f"imputer {one!r} is no estimator; give a regressor or classifier")
        pairs.append((None, one) if one is not None and is_classifier(one) else (one, None))
    return pairs
