"""The picture of a search."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from hexad.core.plots import COLOURS, new_figure, save_figure


def draw_progress(history: Float[np.ndarray, "steps 5"], accuracy: float, path: Path) -> None:
    """Draw the best value and the effective samples over evaluations.

    Args:
        history: a row of `state_file.COLUMNS` a step.
        accuracy: sigma / sqrt(popsize), said in the title.
        path: file to write.
    """
    _, evaluations, best, ess, _ = history.T
    figure, (top, bottom) = new_figure(7.0, 5.0, rows=2, sharex=True, height_ratios=(2, 1))
    top.plot(evaluations, best, color=COLOURS[0])
    top.set_ylabel("best value so far")
    top.set_title(f"iterates settle about {accuracy:.3g} from an optimum (sigma / sqrt(K))")
    finite = best[np.isfinite(best)]
    if len(finite) and finite.min() > 0 and finite.max() > 100 * finite.min():
        top.set_yscale("log")
    bottom.plot(evaluations, ess, color=COLOURS[1], linewidth=0.8)
    bottom.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1)
    bottom.set_ylabel("effective samples")
    bottom.set_xlabel("evaluations")
    save_figure(figure, path)
