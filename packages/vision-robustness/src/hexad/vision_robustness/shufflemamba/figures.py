"""Pictures of a training run."""

from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.plots import COLOURS, new_figure, save_figure


def draw_training(report: dict[str, Any], path: Path) -> None:
    """Loss of each step with its running mean, and validation accuracy over the run."""
    losses = np.asarray(report["losses"])
    figure, (left, right) = new_figure(9.6, 3.8, columns=2)
    steps = np.arange(1, len(losses) + 1)
    left.plot(steps, losses, color=COLOURS[6], linewidth=0.8, label="each step")
    width = max(1, len(losses) // 30)
    if width > 1:
        mean = np.convolve(losses, np.full(width, 1 / width), mode="valid")
        left.plot(steps[width - 1 :], mean, color=COLOURS[0], label=f"mean of {width} steps")
    left.set_xlabel("step")
    left.set_ylabel("training loss")
    left.legend()
    scores = report["scores"]
    right.plot(
        [row["step"] for row in scores],
        [100 * row["top1"] for row in scores],
        marker="o",
        color=COLOURS[1],
        label="validation",
    )
    right.plot(
        [len(losses)], [100 * report["train"]["top1"]], "s", color=COLOURS[2], label="training, at the end"
    )
    right.set_xlabel("step")
    right.set_ylabel("named rightly [%]")
    right.legend()
    save_figure(figure, path)
