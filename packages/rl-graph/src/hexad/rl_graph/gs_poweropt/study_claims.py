"""What the study claims, and where the method is said to lose, written before it was measured."""

from hexad.core.studies import Claim

FULL = ("full",)
LARGE = ("quick", "full")

SWEEP_CLAIMS = (
    Claim(
        "power-finds",
        "The paper's update with N = 4 ends within MSE 0.02 of two-log's global peak from all starts, d = 2",
        metric="at_global",
        arm="paper",
        direction="at least",
        threshold=1.0,
        cases="two-log-2/N=4",
        presets=LARGE,
    ),
    Claim(
        "centred-finds",
        "So does the centred update",
        metric="at_global",
        arm="gspower",
        direction="at least",
        threshold=1.0,
        cases="two-log-2/N=4",
        presets=LARGE,
    ),
    Claim(
        "control",
        "With N = 1 it stays between the peaks: MSE at least 0.1",
        metric="mse",
        arm="paper",
        direction="at least",
        threshold=0.1,
        cases="two-log-2/N=1",
        presets=LARGE,
    ),
    Claim(
        "centred-control",
        "With N = 1 the centred update too stays between the peaks: MSE at least 0.1",
        metric="mse",
        arm="gspower",
        direction="at least",
        threshold=0.1,
        cases="two-log-2/N=1",
        presets=LARGE,
    ),
    Claim(
        "five",
        "In five dimensions N = 4 ends nearer to the peak than MSE 0.1",
        metric="mse",
        arm="gspower",
        direction="at most",
        threshold=0.1,
        cases="two-log-5/N=4",
        presets=FULL,
    ),
)

ATTACK_CLAIMS = (
    Claim(
        "attack-succeeds",
        "Every attack on the digits' classifier succeeds within 3000 queries",
        metric="success",
        arm="gspower",
        direction="at least",
        threshold=1.0,
        presets=LARGE,
    ),
    Claim(
        "attack-norm",
        "Its mean norm is at most 1.35",
        metric="norm",
        arm="gspower",
        direction="at most",
        threshold=1.35,
        presets=LARGE,
    ),
    Claim(
        "attack-smoothing",
        "Its norm is at most 1.05 times that of plain smoothing (N to 0)",
        metric="norm",
        arm="gspower",
        baseline="smoothing",
        relation="ratio",
        direction="at most",
        threshold=1.05,
        presets=LARGE,
    ),
    Claim(
        "centring-helps",
        "Centring the weights makes the norm no larger than the paper's update does",
        metric="norm",
        arm="gspower",
        baseline="paper",
        relation="ratio",
        direction="at most",
        threshold=1.0,
        presets=FULL,
    ),
    Claim(
        "attack-time",
        "CMA-ES takes at least 10 times as long for the same queries",
        metric="time",
        arm="cma",
        direction="at least",
        threshold=10.0,
        presets=LARGE,
    ),
    Claim(
        "loses-norm",
        "It loses: CMA-ES finds attacks of at most 0.95 of its norm",
        metric="norm",
        arm="cma",
        baseline="gspower",
        relation="ratio",
        direction="at most",
        threshold=0.95,
        presets=LARGE,
    ),
)

FIT_CLAIMS = (
    Claim(
        "loses-sunspots",
        "It loses: dual annealing finds the best two frequencies of the sunspots more often, by 0.3 at least",
        metric="hit",
        arm="dual-annealing",
        baseline="gspower",
        direction="at least",
        threshold=0.3,
        presets=FULL,
    ),
    *(
        Claim(
            f"loses-{problem}-{name}",
            f"It loses: {title} ends ten times lower on {problem.title()}, d = 10",
            metric="log_value",
            arm=arm,
            baseline="gspower",
            direction="at most",
            threshold=-1.0,
            cases=problem,
            presets=FULL,
        )
        for problem in ("rastrigin", "griewank")
        for arm, name, title in (
            ("cma", "cma", "CMA-ES"),
            ("dual-annealing", "annealing", "dual annealing"),
        )
    ),
)

CLAIMS = (*SWEEP_CLAIMS, *ATTACK_CLAIMS, *FIT_CLAIMS)
