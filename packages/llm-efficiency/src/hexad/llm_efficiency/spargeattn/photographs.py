"""Non-local-means denoising of real photographs, written as one attention call.

A pixel's denoised colour is a mean of all noisy colours, weighted by how alike the patches around the two
pixels are and how near they lie: softmax(-|z_i - z_j|^2 / (2 h^2)) V. That is dense attention over thousands
of tokens whose structure is a photograph's, with a ground truth to score against (Buades, Coll and Morel,
CVPR 2005; the spatial term makes it a bilateral filter of patches).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.data import load_photograph
from hexad.core.errors import InputError
from hexad.core.validation import check_range

HEAD_DIM = 64
PATCH = 7
CORNER = (120, 200)  # of the crop that is scored: roofs and trees of china.jpg, petals of flower.jpg
# Crops to tune on, which share no pixel with the scored one of any side.
TUNING_CORNERS = ((20, 20), (200, 60), (340, 100), (60, 500), (300, 540))


@dataclass(frozen=True)
class DenoisingTask:
    """One photograph as an attention call.

    Attributes:
        q, k, v: shape (1, 1, side * side, 64), row-major; the first three columns of v are the noisy RGB.
        noisy, clean: shape (side, side, 3) in 0..1 (noise may leave the range).
        scale: the softmax scale the call needs.
    """

    q: Float[Tensor, "1 1 n d"]
    k: Float[Tensor, "1 1 n d"]
    v: Float[Tensor, "1 1 n d"]
    noisy: Float[Tensor, "side side 3"]
    clean: Float[Tensor, "side side 3"]
    scale: float

    def image(self, output: Float[Tensor, "1 1 n d"]) -> Float[Tensor, "side side 3"]:
        """The picture in the output of the attention (row-major order)."""
        return output[0, 0, :, :3].float().reshape(self.clean.shape)

    def psnr(self, output: Float[Tensor, "1 1 n d"]) -> float:
        """Peak signal-to-noise ratio of the output to the clean picture, in dB (peak 1)."""
        return -10 * math.log10(float((self.image(output) - self.clean).square().mean()))

    def permuted(self, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v with their tokens in the given order."""
        return self.q[:, :, order], self.k[:, :, order], self.v[:, :, order]


def denoising_task(
    name: str,
    side: int,
    *,
    seed: int = 0,
    corner: tuple[int, int] = CORNER,
    noise: float = 0.1,
    bandwidth: float = 0.6,
) -> DenoisingTask:
    """Write the denoising of a square crop of a photograph as attention.

    Features z are the 49 grey values of the 7 x 7 patch, centred, and the pixel's two coordinates scaled so
    that a distance of s pixels counts like a patch distance of one bandwidth (s = 8; 6 for sides of 64 and
    less). A principal-component rotation of the patches would change no dot product and is left out. With a
    further dimension for the bias -|z_j|^2 / (2 h^2) the softmax of q.k/8 is the one wanted: the missing
    |z_i|^2 is constant along a row.

    Args:
        name: `"china"` or `"flower"`, the two photographs in scikit-learn.
        side: side of the crop in pixels, 8 to 256; n = side^2 tokens.
        seed: of the noise.
        corner: row and column of the crop's upper left pixel.
        noise: standard deviation of the Gaussian noise, on a scale where white is 1.
        bandwidth: h, in units of patch distance.

    Raises:
        InputError: side, corner, noise or bandwidth out of range, or no such photograph.
        MissingExtraError: scikit-learn is not installed.
    """
    if not 8 <= side <= 256:
        raise InputError(f"side is {side}; the crop holds 8 to 256 pixels a side")
    check_range("noise", noise, 0.0)
    check_range("bandwidth", bandwidth, 0.0, low_open=True)
    photograph = load_photograph(name)
    top, left = corner
    height, width = photograph.shape[:2]
    if not (0 <= top <= height - side and 0 <= left <= width - side):
        raise InputError(
            f"a crop of side {side} at {corner} leaves the photograph of {height} x {width} pixels"
        )
    clean = photograph[top : top + side, left : left + side].astype(np.float64) / 255
    noisy = clean + np.random.default_rng(seed).normal(0, noise, clean.shape)

    grey = np.pad(noisy.mean(2), PATCH // 2, mode="reflect")
    patches = np.lib.stride_tricks.sliding_window_view(grey, (PATCH, PATCH)).reshape(side * side, -1)
    patches = patches - patches.mean(0)
    rows, columns = np.divmod(np.arange(side * side), side)
    coordinates = np.stack([rows, columns], 1) - (side - 1) / 2
    features = np.concatenate([patches, coordinates * bandwidth / (8 if side > 64 else 6)], 1)

    root = math.sqrt(HEAD_DIM)  # 1 / the softmax scale
    q, k, v = np.zeros((3, side * side, HEAD_DIM))
    q[:, : features.shape[1]] = k[:, : features.shape[1]] = features * math.sqrt(root) / bandwidth
    q[:, -1] = 1
    k[:, -1] = -root * np.square(features).sum(1) / (2 * bandwidth**2)
    v[:, :3] = noisy.reshape(-1, 3)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).float()

    return DenoisingTask(
        tensor(q)[None, None],
        tensor(k)[None, None],
        tensor(v)[None, None],
        tensor(noisy),
        tensor(clean),
        1 / root,
    )
