"""Importances of covariates for a fitted model of the treatment effect, row by row.

Psi_j = E[Var(tau(X) | X without j)], the total Sobol index. A copy X' of X whose covariate j is drawn anew
given the others has E[(tau(X') - tau(X))^2] = 2 Psi_j, so the increase of the risk is halved. Refitting
without j (LOCO) leaves E[(tau(X) - E[tau(X) | X without j])^2] = Psi_j, which is not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.science_ml.permucate.adapters import adapt, predicted_effect
from hexad.science_ml.permucate.checks import check_rows, warn_of_constants, warn_of_overlap
from hexad.science_ml.permucate.covariates import Covariates, read_covariates
from hexad.science_ml.permucate.inference import Importances, one_split
from hexad.science_ml.permucate.learners import DRLearner, seeded
from hexad.science_ml.permucate.risks import CLIP, Nuisances, Risk, RiskName, make_risk
from hexad.science_ml.permucate.sampling import Noise, Sampler, fit_samplers

MAX_CELLS = 4_000_000
"""Numbers in one batch of copies (32 MB), so that memory does not grow with permutations times rows."""

Effect = Callable[[Float[np.ndarray, "m p"]], Float[np.ndarray, " m"]]


def increases(
    effect: Effect,
    values: Float[np.ndarray, "n p"],
    risk: Risk,
    blocks: Sequence[Int[np.ndarray, " k"]],
    draw: Callable[[int], Float[np.ndarray, "b n k"]],
) -> Float[np.ndarray, "blocks n"]:
    """Half the mean increase of each row's loss when a block is replaced by its draws.

    Args:
        effect: tau of rows of covariates.
        values: the rows.
        risk: of these rows; it is not recomputed for the copies.
        blocks: positions of the covariates of each block.
        draw: gives the copies of the block of that place.
    """
    n = len(values)
    base = risk.loss(effect(values))
    step = max(1, MAX_CELLS // values.size)
    rows = np.empty((0, values.shape[1]))
    found = np.zeros((len(blocks), n))
    for place, block in enumerate(blocks):
        drawn = draw(place)
        if len(rows) < min(step, len(drawn)) * n:
            rows = np.tile(values, (min(step, len(drawn)), 1))
        for first in range(0, len(drawn), step):
            copies = drawn[first : first + step]
            m = len(copies) * n
            rows[:m, block] = copies.reshape(m, len(block))
            found[place] += risk.loss(effect(rows[:m]).reshape(len(copies), n)).sum(axis=0)
        rows[:, block] = np.tile(values[:, block], (len(rows) // n, 1))
        found[place] = 0.5 * (found[place] / len(drawn) - base)
    return found


def conditional_rows(
    effect: Effect, values: Float[np.ndarray, "n p"], risk: Risk, samplers: Sequence[Sampler], noise: Noise
) -> Float[np.ndarray, "blocks n"]:
    """PermuCATE: each block drawn given the others."""
    return increases(
        effect, values, risk, [s.block for s in samplers], lambda i: samplers[i].draw(values, noise)
    )


def permutation_rows(
    effect: Effect,
    values: Float[np.ndarray, "n p"],
    risk: Risk,
    blocks: Sequence[Int[np.ndarray, " k"]],
    noise: Noise,
) -> Float[np.ndarray, "blocks n"]:
    """Plain permutation: not valid where covariates depend on each other, kept to compare with."""
    return increases(effect, values, risk, blocks, lambda i: values[noise.orders][:, :, blocks[i]])


def loco_rows(
    model: Any,
    covariates: Covariates,
    train: Float[np.ndarray, "m p"],
    y: Float[np.ndarray, " m"],
    treatment: Int[np.ndarray, " m"],
    values: Float[np.ndarray, "n p"],
    risk: Risk,
    blocks: Sequence[Int[np.ndarray, " k"]],
) -> Float[np.ndarray, "blocks n"]:
    """Increase of each row's loss when the model is refitted without a block (LOCO).

    A `DRLearner` refits its final regression to the same pseudo-outcomes (Hines et al. 2022); any other
    learner is refitted as a whole.
    """
    base = risk.loss(predicted_effect(model, covariates.table(values)))
    found = np.zeros((len(blocks), len(values)))
    for place, block in enumerate(blocks):
        kept = np.setdiff1d(np.arange(len(covariates.names)), block)
        if len(kept) == 0:
            tau = np.full(len(values), predicted_effect(model, covariates.table(train)).mean())
        else:
            fewer = covariates.without(block)
            if isinstance(model, DRLearner):
                refitted: Any = seeded(model, None).fit_final(
                    fewer.table(train[:, kept]), model.pseudo_outcomes_
                )
            else:
                refitted = seeded(model, None).fit(fewer.table(train[:, kept]), y, treatment)
            tau = predicted_effect(refitted, fewer.table(values[:, kept]))
        found[place] = risk.loss(tau) - base
    return found


def layers_of(blocks: Sequence[Int[np.ndarray, " k"]], categorical: np.ndarray) -> int:
    """Categorical members of the block that has most."""
    return max(int(categorical[block].sum()) for block in blocks)


def conditional_permutation_importance(
    model: Any,
    X: Any,
    y: Any,
    treatment: Any,
    *,
    X_train: Any,
    nuisances: Any,
    risk: RiskName = "pseudo_outcome",
    imputer: Any = "auto",
    n_permutations: int = 50,
    groups: Mapping[str, Sequence[str]] | None = None,
    categorical: "str | Sequence[str]" = "auto",
    max_cardinality: int = 10,
    encode: bool = True,
    clip: float = CLIP,
    random_state: int | None = None,
) -> Importances:
    """Importances for one fitted model on one test set, with a normal test on its rows.

    The test is approximate and about this fitted model; `PermuCATE` cross-fits and is the one to report.

    Args:
        model: fitted: anything with `effect(X)`, a model of causalml, or an adapter of `adapters`.
        X: test rows (n, p).
        y: their outcomes (n,).
        treatment: their treatments of 0 and 1 (n,).
        X_train: the rows the model was fitted to; the laws of covariates are learnt from them alone.
        nuisances: `Nuisances` at the test rows, or fitted models with `predict(X)` or `nuisances(X)` that
            give them.
        risk: `"pseudo_outcome"` or `"r_risk"`, see `PermuCATE`.
        imputer: see `PermuCATE`.
        n_permutations: draws of each covariate.
        groups: names of groups and the covariates of each, measured together.
        categorical: covariates that are drawn from classes, see `PermuCATE`.
        max_cardinality: see `PermuCATE`.
        encode: hand text to models as 0/1 columns.
        clip: propensities are cut to [clip, 1 - clip].
        random_state: of the permutations, and of every model that has none.

    Raises:
        InputError: the input has gaps, too few rows, or does not fit together.
    """
    check_range("n_permutations", n_permutations, 1)
    covariates = read_covariates(X_train, encode)
    values = covariates.read_like(X)
    y, treatment = check_rows(len(values), y, treatment)
    if len(values) < 20:
        raise InputError(f"the test set has {len(values)} rows; at least 20 are needed")
    names, blocks = covariates.blocks(groups)
    kinds = covariates.categorical(categorical, max_cardinality)
    fitted = adapt(model)
    if not isinstance(nuisances, Nuisances):
        give = getattr(nuisances, "nuisances", None) or nuisances.predict
        nuisances = give(covariates.table(values))
    loss = make_risk(risk, y, treatment, nuisances, clip)
    warn_of_overlap(nuisances.propensity, clip)
    constant = warn_of_constants(covariates)
    samplers = fit_samplers(covariates, covariates.values, blocks, kinds, imputer)
    noise = Noise.draw(len(values), n_permutations, layers_of(blocks, kinds), random_state)
    rows = conditional_rows(
        lambda x: predicted_effect(fitted, covariates.table(x)), values, loss, samplers, noise
    )
    rows[[bool(constant[block].all()) for block in blocks]] = 0.0
    return Importances("permucate", risk, names, rows.mean(axis=1)[None], one_split(rows), covariates.kind)
