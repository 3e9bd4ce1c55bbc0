"""The picture of a search."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from hexad.core.plots import COLOURS, new_figure, save_figure


def draw_progress(
    history: Float[np.ndarray, "steps 5"], accuracy: float | Float[np.ndarray, " d"], path: Path
) -> None:
    """Draw the best value and the effective samples over evaluations.

    Args:
        history: a row of `state_file.COLUMNS` a step.
        accuracy: sigma / sqrt(popsize) times x_scale, of all variables or of each; said in the title.
        path: file to write.
    """
    _, evaluations, best, ess, _ = history.T
    figure, (top, bottom) = new_figure(7.0, 5.0, rows=2, sharex=True, height_ratios=(2, 1))
    top.plot(evaluations, best, color=COLOURS[0])
    top.set_ylabel("best value so far")
    low, high = np.min(accuracy), np.max(accuracy)
    width = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    top.set_title(f"each variable settles about {width} from the smoothed optimum (sigma / sqrt(K))")
    finite = best[np.isfinite(best)]
    if len(finite) and finite.min() > 0 and finite.max() > 100 * finite.min():
        top.set_yscale("log")
    bottom.plot(evaluations, ess, color=COLOURS[1], linewidth=0.8)
    bottom.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1)
    bottom.set_ylabel("effective samples")
    bottom.set_xlabel("evaluations")
    save_figure(figure, path)
