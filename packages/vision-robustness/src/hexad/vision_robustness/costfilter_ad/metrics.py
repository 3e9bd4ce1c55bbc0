"""How well anomaly maps find defects: image and pixel AUROC, pixel AP and F1, and per-region overlap (PRO).

All come from scikit-learn's curves. PRO is a weighted one: a region's pixels share a weight of 1, so the true
positive rate is the mean overlap over regions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import label

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_range

EXTRA = "hexad-vision-robustness[costfilter-ad]"
EIGHT = np.ones((3, 3), dtype=int)


@dataclass(frozen=True)
class Quality:
    """Metrics of a set of maps; None where it lacks normal or anomalous images or pixels."""

    image_auroc: float | None
    pixel_auroc: float | None
    pixel_ap: float | None
    pixel_f1: float | None
    pro: float | None


def library() -> Any:
    """sklearn.metrics, or the error that names its extra."""
    try:
        from sklearn import metrics
    except ImportError:
        raise MissingExtraError(
            f'scikit-learn measures the maps, which is not installed; run: pip install "{EXTRA}"'
        ) from None
    return metrics


def measure(
    maps: Float[np.ndarray, "n height width"],
    masks: Bool[np.ndarray, "n height width"],
    scores: Float[np.ndarray, " n"],
    anomalous: Bool[np.ndarray, " n"] | None = None,
) -> Quality:
    """All metrics.

    Args:
        maps: larger is more anomalous.
        masks: True where anomalous.
        scores: of the images.
        anomalous: whether an image is; None where any pixel of its mask is.

    Raises:
        InputError: arrays of unlike shapes, masks that are not boolean, or a map that is not finite.
    """
    if masks.dtype != bool:
        raise InputError(f"masks are {masks.dtype}; they must be boolean, such as `values > 127`")
    if maps.shape != masks.shape or scores.shape != maps.shape[:1]:
        raise InputError(
            f"maps: {maps.shape}, masks: {masks.shape}, scores: {scores.shape}; give one for each image"
        )
    if not np.isfinite(maps).all():
        raise InputError("an anomaly map is not finite")
    metrics = library()
    flat, truth = maps.ravel(), masks.ravel()
    images = np.array([mask.any() for mask in masks]) if anomalous is None else anomalous
    image_auroc, pixel_auroc = image_quality(images, scores), None
    if not truth.any() or truth.all():
        return Quality(image_auroc, pixel_auroc, None, None, None)
    pixel_auroc = float(metrics.roc_auc_score(truth, flat))
    f1, _ = best_f1(flat, truth)
    average = float(metrics.average_precision_score(truth, flat))
    return Quality(image_auroc, pixel_auroc, average, f1, region_overlap(maps, masks))


def image_quality(anomalous: Bool[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float | None:
    """Image AUROC, or None where all images are good or all are not."""
    if not anomalous.any() or anomalous.all():
        return None
    return float(library().roc_auc_score(anomalous, scores))


def average_precision(maps: np.ndarray, masks: np.ndarray) -> float:
    """Pixel AP, the area under precision over recall."""
    return float(library().average_precision_score(masks.ravel(), maps.ravel()))


def best_f1(scores: Float[np.ndarray, " n"], truth: Bool[np.ndarray, " n"]) -> tuple[float, float]:
    """The largest F1 of any threshold, and that threshold."""
    precision, recall, thresholds = library().precision_recall_curve(truth, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    place = int(f1[:-1].argmax())
    return float(f1[place]), float(thresholds[place])


def region_overlap(
    maps: Float[np.ndarray, "n height width"], masks: Bool[np.ndarray, "n height width"], limit: float = 0.3
) -> float:
    """The area under mean overlap of regions over false positive rate, up to `limit`, as a share of `limit`.

    Regions are components of the masks, corners connected. Source: Bergmann et al., MVTec AD.
    """
    check_range("limit", limit, 0, 1, low_open=True)
    weights = np.ones(maps.shape)
    for weight, mask in zip(weights, masks, strict=True):
        regions, count = label(mask, EIGHT)
        if count:
            sizes = np.bincount(regions.ravel())
            weight[mask] = 1 / sizes[regions[mask]]
    rate, overlap, _ = library().roc_curve(masks.ravel(), maps.ravel(), sample_weight=weights.ravel())
    inside = rate <= limit
    x = np.append(rate[inside], limit)
    y = np.append(overlap[inside], np.interp(limit, rate, overlap))
    return float(library().auc(x, y) / limit)
