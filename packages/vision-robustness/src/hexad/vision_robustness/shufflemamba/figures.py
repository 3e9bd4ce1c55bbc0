"""Pictures of a training run."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from hexad.core.plots import COLOURS, draw_losses, new_figure, save_figure


def draw_training(report: dict[str, Any], path: Path) -> None:
    """Loss of each step with its running mean, and validation accuracy over the run."""
    losses = np.asarray(report["losses"])
    figure, (left, right) = new_figure(9.6, 3.8, columns=2)
    draw_losses(left, losses)
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
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xlabel("step")
    right.set_ylabel("named rightly [%]")
    right.legend()
    save_figure(figure, path)
