"""Pictures of anomaly maps: a heat map laid over the image, with the found and the true outlines."""

import numpy as np
from jaxtyping import Bool, Float, UInt8
from scipy.ndimage import binary_dilation

from hexad.vision_robustness.images import Rgb

RED, GREEN = (255, 40, 40), (60, 255, 60)


def overlay(
    pixels: Rgb, heat: Float[np.ndarray, "height width"], low: float, high: float
) -> UInt8[np.ndarray, "height width 3"]:
    """The image in grey under a heat map; what is at or below `low` stays as it is, `high` is brightest."""
    from matplotlib import colormaps

    strength = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)[:, :, None]
    grey = pixels.mean(2, keepdims=True).repeat(3, axis=2)
    coloured = colormaps["inferno"](0.25 + 0.75 * strength[:, :, 0])[:, :, :3] * 255
    weight = 0.85 * np.sqrt(strength)
    return np.rint(weight * coloured + (1 - weight) * grey).astype(np.uint8)


def outlined(
    pixels: Rgb, mask: Bool[np.ndarray, "height width"], colour: tuple[int, int, int]
) -> UInt8[np.ndarray, "height width 3"]:
    """The image with the outline of a mask drawn around it, one pixel wide or as the image is large."""
    width = max(1, round(min(mask.shape) / 250))
    edge = binary_dilation(mask, iterations=width) & ~mask
    drawn = pixels.copy()
    drawn[edge] = colour
    return drawn


def enlarged(pixels: Rgb, smallest: int = 256) -> Rgb:
    """The picture, each pixel repeated until its shorter side has `smallest`, if it was below."""
    times = -(-smallest // min(pixels.shape[:2]))
    return pixels.repeat(times, 0).repeat(times, 1)


def side_by_side(*panels: Rgb, gap: int = 4) -> UInt8[np.ndarray, "height width 3"]:
    """Pictures of one height beside each other on white."""
    height = panels[0].shape[0]
    bar = np.full((height, gap, 3), 255, np.uint8)
    parts = [part for panel in panels for part in (bar, panel)]
    return np.concatenate(parts[1:], axis=1)
