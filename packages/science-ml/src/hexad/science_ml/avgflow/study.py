"""Does the averaged target train a better flow than one rotation or an alignment, and can one step do?"""

from hexad.core.studies import Arm, Claim, Figure, Metric, Preset, Study
from hexad.science_ml.avgflow.study_arms import (
    AVG,
    COND_OT,
    ETKDG,
    KABSCH,
    SHIPPED,
    Config,
    etkdgv3,
    measure,
    shipped,
)
from hexad.science_ml.avgflow.study_figures import draw_learning, draw_noise, draw_shipped

CLAIMS = (
    Claim(
        "field-ends",
        "Without a network, 20 Euler steps of the exact field end within 0.004 Angstrom of the conformer",
        metric="field_rmsd",
        arm=AVG,
        direction="at most",
        threshold=0.004,
        cases="exact/20 steps/*",
        resample="case",
    ),
    Claim(
        "haar-trace",
        "The rotations it ends in have a mean trace of at most 0.07 (the Haar measure has 0)",
        metric="trace",
        arm=AVG,
        direction="at most",
        threshold=0.07,
    ),
    Claim(
        "haar-square-low",
        "and a mean squared trace of at least 0.85 (the Haar measure has 1)",
        metric="trace_square",
        arm=AVG,
        direction="at least",
        threshold=0.85,
    ),
    Claim(
        "haar-square-high",
        "and of at most 1.15",
        metric="trace_square",
        arm=AVG,
        direction="at most",
        threshold=1.15,
    ),
    Claim(
        "target-noise",
        "At t = 0.1 at least a third of the random rotation's target is noise",
        metric="target_noise",
        arm=COND_OT,
        direction="at least",
        threshold=1 / 3,
        cases="noise/t=0.1/*",
        resample="case",
    ),
    Claim(
        "target-exact",
        "The averaged target has none",
        metric="target_noise",
        arm=AVG,
        direction="at most",
        threshold=1e-9,
        cases="noise/*",
        resample="case",
    ),
    Claim(
        "better-than-rotation",
        "After the same steps its AMR-R with 20 Euler steps is at most 0.85 of conditional OT's",
        metric="amr_r",
        arm=AVG,
        baseline=COND_OT,
        relation="ratio",
        direction="at most",
        threshold=0.85,
        cases="train/base, 20 steps/*",
        resample="case",
        presets=("full",),
    ),
    Claim(
        "no-worse-than-alignment",
        "and at most that of Kabsch alignment",
        metric="amr_r",
        arm=AVG,
        baseline=KABSCH,
        relation="ratio",
        direction="at most",
        threshold=1.0,
        cases="train/base, 20 steps/*",
        resample="case",
        presets=("full",),
    ),
    Claim(
        "lower-loss",
        "Its loss ends lower than conditional OT's",
        metric="loss",
        arm=AVG,
        baseline=COND_OT,
        direction="at most",
        threshold=0.0,
        presets=("full",),
    ),
    Claim(
        "one-step",
        "Distilled, its AMR-P in one step is at most 0.7 of the base network's in one step",
        metric="one_step_ratio",
        arm=AVG,
        direction="at most",
        threshold=0.7,
        presets=("full",),
    ),
    Claim(
        "faster",
        "The shipped network makes at least as many conformers a second in one step as ETKDGv3",
        metric="speedup",
        arm=SHIPPED,
        direction="at least",
        threshold=1.0,
        cases="speed/distilled, 1 step",
    ),
)

STUDY = Study(
    name="avgflow",
    question=(
        "Does the velocity averaged over all rotations train a better flow than one rotation or an alignment "
        "in the same steps, and do reflow and distillation make one step enough?"
    ),
    arms=(
        Arm(AVG, "AvgFlow", "method", measure),
        Arm(COND_OT, "Conditional OT", "baseline", measure),
        Arm(KABSCH, "Kabsch alignment", "baseline", measure),
        Arm(SHIPPED, "Shipped checkpoints", "method", shipped),
        Arm(ETKDG, "ETKDGv3", "baseline", etkdgv3),
    ),
    metrics=(
        Metric("amr_r", "AMR-R", "Angstrom", better="lower"),
        Metric("amr_p", "AMR-P", "Angstrom", better="lower"),
        Metric("cov_r", "COV-R", better="higher"),
        Metric("cov_p", "COV-P", better="higher"),
        Metric("loss", "Loss at the end", "Angstrom²", better="lower"),
        Metric("one_step_ratio", "AMR-P in one step, distilled / base", better="lower"),
        Metric("field_rmsd", "Exact field, RMSD", "Angstrom", better="lower", digits=5),
        Metric("trace", "Mean trace of the rotations"),
        Metric("trace_square", "Mean squared trace"),
        Metric("target_noise", "Noise of the target", better="lower"),
        Metric("transport", "Squared path", "Angstrom²", better="lower"),
        Metric("failed", "Wrong stereochemistry", better="lower"),
        Metric("per_second", "Conformers a second", better="higher", digits=0),
        Metric("speedup", "Speed, to ETKDGv3", better="higher", digits=2),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(2, 40, train=6, judged=2, steps=4, refine=2, pairs=2, shipped=2, base_steps=2), 1
        ),
        "quick": Preset(
            Config(8, 250, train=0, judged=0, steps=0, refine=0, pairs=0, shipped=8, base_steps=20), 1
        ),
        "full": Preset(
            Config(8, 250, train=200, judged=40, steps=1000, refine=400, pairs=8, shipped=40, base_steps=50),
            3,
        ),
    },
    figures=(
        Figure("noise", "Share of the target that is noise", draw_noise),
        Figure("learning", "Loss and AMR-R of the small networks", draw_learning),
        Figure("shipped", "Shipped base network: samples over references", draw_shipped),
    ),
    notes=(
        "Molecules are of the NCI open collection as packaged in RDKit (public domain), 6 to 14 heavy atoms, "
        "1 to 5 rotatable bonds. References are ETKDGv3 embeds relaxed by MMFF94, so the ETKDGv3 row is near "
        "the generator of the truth and is shown for orientation alone; GEOM's references (CREST) are in no "
        "package. The small networks (a DiT of 4 layers by 96, the same first weights, order and steps for "
        "all three objectives) learn heavy atoms, on the molecules called train; test molecules share no "
        "constitution with them. RMSDs are of heavy atoms, symmetry counted, twice as many samples as "
        "references, no sample mirrored. The network of the alignment has straight paths already, so its "
        "one step is the stronger comparison for the distilled network. The shipped networks make "
        "hydrogens too, of test molecules; there a sample with the wrong stereochemistry is mirrored once, "
        "and counts as failed if it is still wrong. Speed is from a parsed molecule to coordinates, 20 "
        "conformers each, in interleaved rounds; ETKDGv3 is given as many threads as torch takes."
    ),
)
