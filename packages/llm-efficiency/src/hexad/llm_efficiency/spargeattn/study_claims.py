"""What the study claims, written before it was measured; the thresholds are this project's own."""

from hexad.core.studies import Claim
from hexad.llm_efficiency.spargeattn.study_photographs import PHOTOGRAPHS

JUDGED = ("quick", "full")
FULL = ("full",)

PHOTOGRAPH_CLAIMS = (
    Claim(
        "skips",
        "At least 85 % of the tiles are skipped",
        metric="sparsity",
        arm="sparge",
        direction="at least",
        threshold=0.85,
        cases="photo/*",
        presets=JUDGED,
    ),
    Claim(
        "error",
        "The output errs by at most 2 % (relative L1)",
        metric="rel_l1",
        arm="sparge",
        direction="at most",
        threshold=0.02,
        cases="photo/*",
        presets=JUDGED,
    ),
    *(
        Claim(
            f"picture-{name}",
            f"The denoised picture ({name}) is within 0.35 dB of the dense one",
            metric="psnr_gap",
            arm="sparge",
            direction="at most",
            threshold=0.35,
            cases=f"photo/{name}/*",
            presets=JUDGED,
        )
        for name in PHOTOGRAPHS
    ),
    Claim(
        "hilbert",
        "Hilbert order skips 0.4 more of the tiles than row-major order",
        metric="sparsity",
        arm="sparge",
        baseline="row-major",
        direction="at least",
        threshold=0.4,
        cases="photo/*",
        presets=JUDGED,
    ),
    *(
        Claim(
            f"speed-{tokens}",
            f"The whole call is {times:g} times as fast as SDPA at {tokens:,} tokens",
            metric="speedup",
            arm="sparge",
            direction="at least",
            threshold=times,
            cases=f"photo/*/{tokens}",
            presets=presets,
        )
        for tokens, times, presets in ((4096, 1.5, JUDGED), (16384, 3.0, FULL))
    ),
    Claim(
        "flex",
        "The whole call is no slower than flex_attention over the same tiles",
        metric="speedup",
        arm="sparge",
        baseline="flex",
        relation="ratio",
        direction="at least",
        threshold=1.0,
        cases="photo/*/16384",
        presets=FULL,
    ),
    Claim(
        "judge",
        "Without the judge the error is at least five times as large (china, 16,384 tokens)",
        metric="rel_l1",
        arm="judge-off",
        baseline="judge-on",
        relation="ratio",
        direction="at least",
        threshold=5.0,
        cases="photo/china/16384",
        presets=FULL,
    ),
    *(
        Claim(
            f"beats-{arm}",
            f"The error is at most half of that of {what}",
            metric="rel_l1",
            arm="sparge",
            baseline=arm,
            relation="ratio",
            direction="at most",
            threshold=0.5,
            cases="photo/*",
            presets=JUDGED,
        )
        for arm, what in (
            ("random-tiles", "as many random tiles"),
            ("window", "as many tiles near the diagonal"),
        )
    ),
    Claim(
        "tuned",
        "Tuned to an error of 2 % on other pictures, it stays below 2 % on these",
        metric="rel_l1",
        arm="tuned",
        direction="at most",
        threshold=0.02,
        cases="photo/*",
        presets=FULL,
    ),
    Claim(
        "int8",
        "INT8 adds at most 0.01 to the relative L1 error",
        metric="rel_l1",
        arm="int8",
        baseline="sparge",
        direction="at most",
        threshold=0.01,
        cases="photo/*",
        presets=JUDGED,
    ),
)

TEXT_CLAIMS = (
    Claim(
        "text-cosine",
        "A trained encoder's embeddings keep a cosine of 0.99 to the dense ones",
        metric="cosine",
        arm="sparge",
        direction="at least",
        threshold=0.99,
    ),
    Claim(
        "text-tuned",
        "So they do with the filter tuned per head on other texts",
        metric="cosine",
        arm="tuned",
        direction="at least",
        threshold=0.99,
        presets=JUDGED,
    ),
    Claim(
        "text-retrieval",
        "Retrieval loses at most 2 points",
        metric="retrieval",
        arm="sparge",
        baseline="dense",
        direction="at least",
        threshold=-0.02,
        presets=FULL,
    ),
    Claim(
        "text-random",
        "Hidden states err at most half as much as with as many random tiles",
        metric="text_rel_l1",
        arm="sparge",
        baseline="random-tiles",
        relation="ratio",
        direction="at most",
        threshold=0.5,
        presets=JUDGED,
    ),
)

CLAIMS = (*PHOTOGRAPH_CLAIMS, *TEXT_CLAIMS)
