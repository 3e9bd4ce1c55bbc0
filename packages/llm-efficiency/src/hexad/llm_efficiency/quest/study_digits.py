"""The small half of the study: an MLP on scikit-learn's handwritten digits."""

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.studies import Measurement, Trial
from hexad.llm_efficiency.quest.recipe import make_optimizer, make_scheduler
from hexad.llm_efficiency.quest.study_arms import WIDTHS, Variant, case_of

BATCH = 64
RATE = 3e-3
Split = tuple[Float[Tensor, "n 64"], Int[Tensor, " n"]]


@functools.lru_cache(maxsize=4)
def digits(seed: int) -> tuple[Split, Split]:
    """1797 digits of 8 x 8 pixels (BSD-3; from UCI) as rows of 64 in [-1, 1]: three quarters to train on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 8 - 1).float(), torch.from_numpy(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: 3 * len(x) // 4], order[3 * len(x) // 4 :]
    return (x[train], y[train]), (x[test], y[test])


def make_mlp() -> nn.Module:
    """64 - 128 - 128 - 10; the last layer is the head, which no arm quantises."""
    layers = {
        "first": nn.Linear(64, 128),
        "act1": nn.GELU(),
        "second": nn.Linear(128, 128),
        "act2": nn.GELU(),
        "lm_head": nn.Linear(128, 10),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def measure_digits(trial: Trial, variant: Variant, epochs: int) -> Iterator[Measurement]:
    """Test accuracy at each width; full precision has one for all."""
    widths = WIDTHS if variant.quantise is not None else (0,)
    for bits in widths:
        trial.progress(0.0, "digits")
        accuracy = _accuracy(trial.seed, variant, bits, epochs)
        for case in (case_of(width) for width in (WIDTHS if bits == 0 else (bits,))):
            yield Measurement("accuracy", accuracy, f"digits/{case}")


def _accuracy(seed: int, variant: Variant, bits: int, epochs: int) -> float:
    (x, y), (x_test, y_test) = digits(seed)
    torch.manual_seed(seed)
    model = make_mlp()
    if variant.quantise is not None:
        model = variant.quantise(model, bits)
    steps = epochs * (len(x) // BATCH)
    optimizer = make_optimizer(model, RATE)
    scheduler = make_scheduler(optimizer, RATE, steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return float((model(x_test).argmax(-1) == y_test).float().mean())
