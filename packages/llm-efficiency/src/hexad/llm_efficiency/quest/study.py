"""Does training with 1 to 4 bits work, and is it the transform, the fitted grid and the trust mask?"""

import functools
import importlib.util
from collections.abc import Iterator

from hexad.core.studies import Arm, Figure, Measurement, Metric, Preset, Role, Study, Trial
from hexad.llm_efficiency.quest import study_figures
from hexad.llm_efficiency.quest.study_arms import VARIANTS, WIDTHS
from hexad.llm_efficiency.quest.study_claims import CLAIMS
from hexad.llm_efficiency.quest.study_digits import measure_digits
from hexad.llm_efficiency.quest.study_language import Config, measure_language

# Said when the study is loaded, not after the first arms have run; found without the seconds an import takes.
for _needed in ("lightning_fabric", "sklearn", "transformers"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


def run(trial: Trial, name: str) -> Iterator[Measurement]:
    """Measure an arm at one seed: digits, then the language model."""
    config: Config = trial.config
    if config.digits_epochs:
        yield from measure_digits(trial, VARIANTS[name], config.digits_epochs)
    yield from measure_language(trial, VARIANTS[name])


def _arm(name: str, title: str, role: Role) -> Arm:
    return Arm(name, title, role, functools.partial(run, name=name))


STUDY = Study(
    name="quest",
    question=(
        "Can a language model be trained with 1 to 4 bits for weights and activations, better than with "
        "straight-through estimators or learned step sizes?"
    ),
    arms=(
        _arm("quest", "QuEST", "method"),
        _arm("no-hadamard", "QuEST without the Hadamard transform", "ablation"),
        _arm("no-trust", "QuEST with the plain straight-through estimator (M = 1)", "ablation"),
        _arm("absmax", "AbsMax scales, straight-through estimator", "baseline"),
        _arm("lsq", "learned step sizes (LSQ)", "baseline"),
        _arm("fp32", "full precision", "baseline"),
    ),
    metrics=(
        Metric("loss", "test loss", "nats/byte", better="lower", digits=4),
        Metric("below_unigram", "below unigram", "nats/byte", better="higher"),
        Metric("width_gap", "loss over the next width", "nats/byte", digits=3),
        Metric("alignment", "gradient cosine", better="higher"),
        Metric("packed_ratio", "packed size", better="lower"),
        Metric("packed_difference", "packed logits", better="lower", digits=2),
        Metric("accuracy", "digits", better="higher", digits=4),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(
                widths=(2,), steps=4, batch=2, hidden=32, layers=1, heads=2, test_windows=2, digits_epochs=1
            ),
            seeds=1,
        ),
        "quick": Preset(Config(widths=(2,), steps=40, layers=2, test_windows=64), seeds=1),
        "full": Preset(Config(widths=WIDTHS, ordered=(3,)), seeds=3),
    },
    figures=(
        Figure("losses", "Test loss by bits of weights and activations", study_figures.losses),
        Figure("alignments", "How much of the gradient is kept, half-way", study_figures.alignments),
    ),
    notes=(
        "Columns: cross-entropy on text that was not trained on; how far that lies below the entropy of "
        "single bytes; for QuEST the loss over that of the next wider width; half-way through training, the "
        "mean over layers of the cosine between the weights' gradient and that with activations left in "
        "full precision; bytes of the packed quantised layers over their float32; the largest difference of "
        "the packed model's logits; accuracy on digits. Means over the widths 4, 2 and 1 (QuEST's own at 3 "
        "too): the claims and the figure are by width. Language: a Llama over bytes (hidden 128, 3 layers, "
        "4 heads, SwiGLU 384, 0.7 million parameters) on the sources of the running Python's standard "
        "library (PSF licence), every tenth file held out, with the paper's recipe: AdamW (0.9, 0.95), "
        "decay 0.1, clip 1, cosine with a tenth of warm-up. The seed draws the weights and the order of the "
        "windows. In `full` 600 steps of 8 windows of 128 bytes: about a byte a parameter, where the paper "
        "trains on a hundred tokens a parameter; so these are the first steps of a training, far from "
        "convergence. Embedding, norms and head stay in full precision. Each arm trains at the best of the "
        "rates 3e-4, 1e-3, 3e-3 and 1e-2, the same for all widths as in the paper; they were compared at two "
        "bits, half the length and a seed that no preset uses (`python -m "
        "hexad.llm_efficiency.quest.sweep`): 3e-3 for QuEST and LSQ, 1e-3 for the others. "
        "AbsMax and LSQ use the same mid-rise grids; LSQ has a step a channel for weights and one "
        "for activations, learned in the logarithm. "
        "Digits: scikit-learn's 8 x 8 digits (BSD-3), an MLP 64-128-128-10 whose last layer is the head, a "
        "quarter held out."
    ),
)
