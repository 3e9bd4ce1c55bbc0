"""The loss of the filtering network: focal with an own gamma for each image, SSIM, MSE, soft IoU, class.

L = Focal(gamma_i) + beta (1 - SSIM) + MSE + 0.1 SoftIoU + 0.5 CE(class), on softmax probabilities at the size
of the image. Source: arXiv 2505.01476 and the code of its authors.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_range

SMOOTH = 1e-5
WINDOW, SIGMA = 11, 1.5


@dataclass(frozen=True)
class LossWeights:
    """Weights of the terms beside focal and MSE, which have 1.

    Args:
        ssim: 0.1 for Dinomaly and HVQ-Trans, 0.2 for GLAD.
        iou: of soft IoU.
        classes: of the product class's cross entropy.
    """

    ssim: float = 0.1
    iou: float = 0.1
    classes: float = 0.5

    def __post_init__(self) -> None:
        for name in ("ssim", "iou", "classes"):
            check_range(f"weight {name}", getattr(self, name), 0)


def dynamic_gamma(
    class_logits: Float[Tensor, "batch classes"], classes: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Gamma of each image: max(3 - largest class logit, 1.5), and 3.5 where the class is mistaken.

    It is a weight and no path for gradients: with one product class nothing would stop the network from
    lowering its loss by raising gamma.
    """
    largest, predicted = class_logits.detach().max(1)
    return torch.where(predicted == classes, (3 - largest).clamp_min(1.5), 3.5)


def focal_loss(
    probabilities: Float[Tensor, "batch 2 height width"],
    mask: Float[Tensor, "batch height width"],
    gamma: Float[Tensor, " batch"] | float,
) -> Float[Tensor, ""]:
    """-(1 - p_t)^gamma log p_t, the mean over places and images.

    Args:
        probabilities: of normal and anomalous.
        mask: 1 where anomalous, 0 elsewhere.
        gamma: one for all, or one an image; 0 gives the cross entropy, but for label smoothing of 1e-5.
    """
    truth = torch.stack((1 - mask, mask), 1).clamp(SMOOTH, 1 - SMOOTH)
    # At p = 1 the sum is 1 + 1e-5, whose complement would be negative and have no power.
    true = ((truth * probabilities).sum(1) + SMOOTH).clamp_max(1)
    exponent = torch.as_tensor(gamma, dtype=true.dtype, device=true.device).reshape(-1, 1, 1)
    return -((1 - true).clamp_min(1e-12) ** exponent * true.log()).mean()


def ssim_map(
    first: Float[Tensor, "batch 1 height width"], second: Float[Tensor, "batch 1 height width"]
) -> Float[Tensor, "batch 1 height width"]:
    """Structural similarity: Gaussian window of 11, sigma 1.5, range 1, zeros beyond the border."""
    offsets = torch.arange(WINDOW, dtype=first.dtype, device=first.device) - WINDOW // 2
    line = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    line = line / line.sum()

    products = torch.cat((first, second, first * first, second * second, first * second), 1)
    weights = line.repeat(5, 1, 1)
    blurred = functional.conv2d(products, weights[:, :, :, None], padding=(WINDOW // 2, 0), groups=5)
    blurred = functional.conv2d(blurred, weights[:, :, None, :], padding=(0, WINDOW // 2), groups=5)
    mean1, mean2, square1, square2, product = blurred.split(1, 1)
    variance1, variance2 = square1 - mean1**2, square2 - mean2**2
    covariance = product - mean1 * mean2
    c1, c2 = 0.01**2, 0.03**2
    numerator = (2 * mean1 * mean2 + c1) * (2 * covariance + c2)
    return numerator / ((mean1**2 + mean2**2 + c1) * (variance1 + variance2 + c2))


def soft_iou_loss(prediction: Tensor, mask: Tensor) -> Float[Tensor, ""]:
    """1 - (intersection + 1) / (union + 1), over all places of the batch together."""
    common = (prediction * mask).sum()
    return 1 - (common + 1) / (prediction.sum() + mask.sum() - common + 1)


def filter_loss(
    logits: Float[Tensor, "batch 2 size size"],
    class_logits: Float[Tensor, "batch classes"],
    mask: Float[Tensor, "batch height width"],
    classes: Int[Tensor, " batch"],
    weights: LossWeights = LossWeights(),
) -> Float[Tensor, ""]:
    """The whole loss.

    Args:
        logits: of the network.
        class_logits: of its adaptor.
        mask: 1 where anomalous, at the size of the image.
        classes: numbers of the product classes.
        weights: of the terms.

    Raises:
        InputError: a mask that is not binary or not (batch, height, width), or a class that the network
            does not know.
    """
    check_targets(mask, classes, logits.shape[0], class_logits.shape[1])
    mask = mask.to(logits.dtype)
    probabilities = to_image(logits.softmax(1), (mask.shape[1], mask.shape[2]))
    anomalous, target = probabilities[:, 1:], mask[:, None]
    focal = focal_loss(probabilities, mask, dynamic_gamma(class_logits, classes))
    similarity = 1 - ssim_map(anomalous, target).mean()
    return (
        focal
        + weights.ssim * similarity
        + functional.mse_loss(anomalous, target)
        + weights.iou * soft_iou_loss(anomalous, target)
        + weights.classes * functional.cross_entropy(class_logits, classes)
    )


def to_image(maps: Float[Tensor, "batch c h w"], size: tuple[int, int]) -> Float[Tensor, "batch c h2 w2"]:
    """Scale maps to the size of the image, bilinearly with aligned corners."""
    return functional.interpolate(maps, size=size, mode="bilinear", align_corners=True)


def check_targets(mask: Tensor, classes: Tensor, batch: int, n_classes: int) -> None:
    """Refuse masks and classes that cannot be learnt from (`InputError`)."""
    if mask.ndim != 3 or mask.shape[0] != batch:
        raise InputError(f"masks are {tuple(mask.shape)}; they must be ({batch}, height, width)")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError("masks must be binary, 0 for normal and 1 for anomalous; threshold them first")
    if classes.shape != (batch,):
        raise InputError(f"classes are {tuple(classes.shape)}; there must be one for each of {batch} images")
    if bool(((classes < 0) | (classes >= n_classes)).any()):
        raise InputError(
            f"classes go from {int(classes.min())} to {int(classes.max())}, but the network knows 0 to "
            f"{n_classes - 1}"
        )
