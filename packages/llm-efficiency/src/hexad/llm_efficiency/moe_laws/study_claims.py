"""What the study claims, written before it was measured; most thresholds are this project's own."""

from hexad.core.studies import Claim

JUDGED = ("quick", "full")
FULL = ("full",)

TABLE_CLAIMS = (
    Claim(
        "table-1",
        "The paper's compute-optimal sizes and tokens come out within 2 % of what is printed (rounded)",
        metric="table1_error",
        arm="joint",
        direction="at most",
        threshold=0.02,
    ),
    Claim(
        "table-4",
        "The Chinchilla coefficients of each E come out within 0.3 %",
        metric="table4_error",
        arm="joint",
        direction="at most",
        threshold=0.003,
    ),
    Claim(
        "table-2",
        "The best E under memory is the printed one in at least 9 of 12 budgets",
        metric="table2_agree",
        arm="joint",
        direction="at least",
        threshold=9,
    ),
)

RECOVERY_CLAIMS = (
    Claim(
        "recovers",
        "Fitted to noisy losses, the joint law errs by at most 0.006 nats on the 30 best runs, never shown",
        metric="heldout_error",
        arm="joint",
        direction="at most",
        threshold=0.006,
        presets=JUDGED,
    ),
    Claim(
        "sizes",
        "Its compute-optimal sizes are within 10 % of the true ones at every judged E and budget",
        metric="n_star_error",
        arm="joint",
        direction="at most",
        threshold=0.10,
        presets=FULL,
    ),
    Claim(
        "sizes-mean",
        "They are within 10 % on average over E and budgets",
        metric="n_star_mean_error",
        arm="joint",
        direction="at most",
        threshold=0.10,
        presets=FULL,
    ),
    Claim(
        "fit-time",
        "A fit of 252 runs from 64 starts takes at most 60 s",
        metric="fit_seconds",
        arm="joint",
        direction="at most",
        threshold=60,
        presets=FULL,
    ),
    *(
        Claim(
            f"beats-{arm}",
            f"The error on runs never shown is at least 1.5 times as large {what}",
            metric="heldout_error",
            arm=arm,
            baseline="joint",
            relation="ratio",
            direction="at least",
            threshold=1.5,
            presets=FULL,
        )
        for arm, what in (
            ("raw-experts", "with E in place of its saturating form"),
            ("mean-huber", "where the mean of Huber losses is minimised at SciPy's tolerances"),
        )
    ),
)

LADDER_CLAIMS = (
    Claim(
        "experts-help",
        "At equal active parameters and tokens, trained models of 4 experts lose no more than dense ones",
        metric="loss",
        arm="switch-4",
        baseline="dense",
        direction="at most",
        threshold=0.0,
        presets=FULL,
    ),
    Claim(
        "predicts",
        "The joint law predicts the longest trained runs, never shown, within 0.03 nats per byte",
        metric="ladder_rmse",
        arm="joint",
        direction="at most",
        threshold=0.03,
        presets=FULL,
    ),
    *(
        Claim(
            f"predicts-as-{arm}",
            f"It predicts them at most 0.005 nats per byte worse than {what}",
            metric="ladder_rmse",
            arm="joint",
            baseline=arm,
            direction="at most",
            threshold=0.005,
            presets=FULL,
        )
        for arm, what in (
            ("chinchilla", "a Chinchilla law for each E"),
            ("separable", "a law without interactions"),
        )
    ),
)

CLAIMS = (*TABLE_CLAIMS, *RECOVERY_CLAIMS, *LADDER_CLAIMS)
