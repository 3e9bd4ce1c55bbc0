"""One look for all figures: a palette that colour-blind readers can tell apart, and quiet axes."""

import re
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's eight colours, the order chosen so that the first four differ most.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#F0E442")

STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
    "legend.frameon": False,
}


def new_figure(
    width: float = 7.0, height: float = 4.0, rows: int = 1, columns: int = 1, **subplots: Any
) -> "tuple[Figure, Any]":
    """A figure in the house style and its axes, without pyplot's global state.

    Args:
        width, height: inches.
        rows, columns: grid of axes; a single pair comes back as one `Axes`, else as an array.
        subplots: passed to `Figure.subplots` (`sharex`, `squeeze`, `width_ratios` ...).
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    style: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **subplots)


def draw_losses(axis: "Axes", losses: "Float[np.ndarray, ' steps']", unit: str = "") -> None:
    """The loss of each step of a training, with its running mean over a thirtieth of the steps."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    steps = np.arange(1, len(losses) + 1)
    axis.plot(steps, losses, color=COLOURS[6], linewidth=0.8, label="each step")
    width = max(1, len(losses) // 30)
    if width > 1:
        mean = np.convolve(losses, np.full(width, 1 / width), mode="valid")
        axis.plot(steps[width - 1 :], mean, color=COLOURS[0], label=f"mean of {width} steps")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step")
    axis.set_ylabel(f"training loss [{unit}]" if unit else "training loss")


def save_figure(figure: "Figure", path: Any) -> None:
    """Write the figure to a file whose suffix names the format, atomically.

    Characters that its font lacks are drawn as boxes, with one warning for all of them.
    """
    from hexad.core.files import atomic_path

    with warnings.catch_warnings(record=True) as caught, atomic_path(path) as temporary:
        warnings.simplefilter("always")
        figure.savefig(temporary, dpi=STYLE["savefig.dpi"], bbox_inches="tight")
    missing = {}
    for warning in caught:
        glyph = re.match(r"Glyph (\d+) .*missing from font", str(warning.message))
        if glyph:
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        warnings.warn(f"the font of {path} lacks {''.join(missing)!r}; boxes stand there", stacklevel=2)
