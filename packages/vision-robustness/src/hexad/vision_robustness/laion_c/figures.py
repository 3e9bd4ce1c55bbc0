"""Pictures: accuracy by distortion and intensity, and one image under all thirty distortions."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from hexad.core.plots import COLOURS, new_figure
from hexad.vision_robustness.images import Rgb
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS, corrupt_in_frame
from hexad.vision_robustness.laion_c.images import benchmark_frame
from hexad.vision_robustness.laion_c.labelled import CLEAN
from hexad.vision_robustness.laion_c.levels import LEVELS
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import file_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def accuracy_figure(cells: Mapping[tuple[str, int], float], chance: float) -> "Figure":
    """Curves of accuracy over intensity, one a distortion, from the clean images at 0.

    Args:
        cells: accuracy by (type, level); level 0 of type `clean` is where all curves begin.
        chance: accuracy of guessing, drawn as a dotted line.
    """
    figure, axes = new_figure(7.2, 4.2)
    draw_accuracy(axes, cells, chance)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw_accuracy(axes: "Axes", cells: Mapping[tuple[str, int], float], chance: float) -> None:
    """Draw the curves of `accuracy_figure` on given axes."""
    clean = cells.get((CLEAN, 0))
    names = sorted({name for name, level in cells if level > 0})
    for index, name in enumerate(names):
        points = sorted((level, value) for (other, level), value in cells.items() if other == name)
        if clean is not None:
            points.insert(0, (0, clean))
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            color=COLOURS[index % len(COLOURS)],
            label=name.replace("_", " "),
        )
    if clean is not None:
        axes.plot([0], [clean], marker="o", color="black", label="clean", linestyle="none")
    axes.axhline(chance, color="#888888", linestyle=":", linewidth=1.2, label="chance")
    levels = sorted({level for _, level in cells})
    axes.set(xlabel="intensity", ylabel="superclass accuracy", ylim=(-0.02, 1.02), xticks=levels)


def contact_sheet(
    image: Rgb,
    tiles: TileBank,
    seed: int = 0,
    *,
    cell: int = 168,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> UInt8[np.ndarray, "height width 3"]:
    """One image in the benchmark's frame: itself, then a row a distortion and a column an intensity."""
    gap, margin, top = 6, 150, 26
    columns, rows = len(LEVELS) + 1, len(DISTORTIONS)
    sheet = Image.new("RGB", (margin + columns * (cell + gap), top + rows * (cell + gap)), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(14)
    for column in range(columns):
        text = f"intensity {column}" if column else "original"
        draw.text((margin + column * (cell + gap), 5), text, "black", font)
    for row, name in enumerate(DISTORTIONS):
        y = top + row * (cell + gap)
        draw.text((6, y + cell // 2 - 8), name.replace("_", "\n"), "black", font)
        for column in range(columns):
            if column:
                shown = corrupt_in_frame(image, name, column, file_seed(seed, "", name, column), tiles)
            else:
                shown = benchmark_frame(image)
            small = Image.fromarray(shown).resize((cell, cell), Image.Resampling.LANCZOS)
            sheet.paste(small, (margin + column * (cell + gap), y))
        progress(row + 1, rows)
    return np.asarray(sheet)
