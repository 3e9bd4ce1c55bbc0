"""The block Hadamard transform: x times a block-diagonal Hadamard matrix, orthogonal and its own inverse.

`hadamard_transform` spreads each run of `block` entries evenly over themselves, which makes them look Gaussian
and so fit for a few bits (QuEST, arXiv 2502.05003; QuaRot, arXiv 2404.00456). Names load on first use, so
importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.hadamard_transform.functional import available_backends, hadamard_transform

_HOME = {"available_backends": "functional", "hadamard_transform": "functional"}

__all__ = ["available_backends", "hadamard_transform"]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
