"""What the study claims, written before it was measured; thresholds for a model of 0.7 million weights.

That of the digits at one bit was set by seeds which no preset uses (0.87).
"""

from hexad.core.studies import Claim

FULL = ("full",)
JUDGED = ("quick", "full")

LANGUAGE_CLAIMS = (
    Claim(
        "close-4",
        "At 4 bits QuEST loses at most 0.06 nats a byte more than full precision",
        metric="loss",
        arm="quest",
        baseline="fp32",
        direction="at most",
        threshold=0.06,
        cases="w4a4",
        presets=FULL,
    ),
    *(
        Claim(
            f"absmax-{bits}",
            f"At {bits} bit{'s' * (bits > 1)} it is at least {margin} better than AbsMax scales with STE",
            metric="loss",
            arm="quest",
            baseline="absmax",
            direction="at most",
            threshold=-margin,
            cases=f"w{bits}a{bits}",
            presets=FULL,
        )
        for bits, margin in ((2, 0.10), (1, 0.20))
    ),
    *(
        Claim(
            f"lsq-{bits}",
            f"At {bits} bit{'s' * (bits > 1)} it is no worse than learned step sizes (within 0.01)",
            metric="loss",
            arm="quest",
            baseline="lsq",
            direction="at most",
            threshold=0.01,
            cases=f"w{bits}a{bits}",
            presets=FULL,
        )
        for bits in (2, 1)
    ),
    Claim(
        "learns-1",
        "At 1 bit it learns context: at least 0.5 nats below the entropy of single bytes",
        metric="below_unigram",
        arm="quest",
        direction="at least",
        threshold=0.5,
        cases="w1a1",
        presets=FULL,
    ),
    *(
        Claim(
            f"order-{narrow}-{wide}",
            f"{narrow} bit{'s' * (narrow > 1)} lose more than {wide}",
            metric="width_gap",
            arm="quest",
            direction="at least",
            threshold=0.0,
            cases=f"w{narrow}a{narrow}-w{wide}a{wide}",
            presets=FULL,
        )
        for narrow, wide in ((3, 4), (2, 3), (1, 2))
    ),
    *(
        Claim(
            f"hadamard-{bits}",
            f"Without the Hadamard transform it is no better at {bits} bit{'s' * (bits > 1)}",
            metric="loss",
            arm="quest",
            baseline="no-hadamard",
            direction="at most",
            threshold=0.0,
            cases=f"w{bits}a{bits}",
            presets=FULL,
        )
        for bits in (2, 1)
    ),
    *(
        Claim(
            f"trust-{bits}",
            f"Without the trust mask it is no better at {bits} bit{'s' * (bits > 1)}",
            metric="loss",
            arm="quest",
            baseline="no-trust",
            direction="at most",
            threshold=0.0,
            cases=f"w{bits}a{bits}",
            presets=FULL,
        )
        for bits in (2, 1)
    ),
    Claim(
        "alignment",
        "Its gradients are closer to those with full-precision activations than AbsMax-STE's, by 0.1",
        metric="alignment",
        arm="quest",
        baseline="absmax",
        direction="at least",
        threshold=0.1,
        presets=FULL,
    ),
    *(
        Claim(
            f"packed-{bits}",
            f"Packed at {bits} bit{'s' * (bits > 1)} the quantised layers take at most 1/{share} of float32",
            metric="packed_ratio",
            arm="quest",
            direction="at most",
            threshold=1 / share,
            cases=f"w{bits}a{bits}",
            presets=FULL,
        )
        for bits, share in ((4, 6), (1, 20))
    ),
    Claim(
        "packed-same",
        "The packed model's logits are those of the trained one to 1e-4",
        metric="packed_difference",
        arm="quest",
        direction="at most",
        threshold=1e-4,
        presets=JUDGED,
    ),
)

DIGITS_CLAIMS = tuple(
    Claim(
        f"digits-{name}",
        f"{title} reads at least {threshold:.0%} of the digits",
        metric="accuracy",
        arm=arm,
        direction="at least",
        threshold=threshold,
        cases=cases,
        presets=JUDGED,
    )
    for name, title, arm, cases, threshold in (
        ("1", "An MLP with 1 bit", "quest", "digits/w1a1", 0.85),
        ("2", "An MLP with 2 bits", "quest", "digits/w2a2", 0.94),
        ("fp32", "The same MLP in full precision", "fp32", "digits/*", 0.96),
    )
)

CLAIMS = (*LANGUAGE_CLAIMS, *DIGITS_CLAIMS)
