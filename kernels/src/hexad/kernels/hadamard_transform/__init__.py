"""The block Hadamard transform: x times a block-diagonal Hadamard matrix, orthogonal and its own inverse.

`hadamard_transform` mixes each run of `block` entries with one another, so that a large entry is spread over
all of them and what a layer sees is close to Gaussian: fit to be rounded to a few bits (QuaRot, arXiv
2404.00456; QuEST, arXiv 2502.05003). Names load on first use, so importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.hadamard_transform.functional import available_backends, hadamard_transform

_HOME = {"available_backends": "functional", "hadamard_transform": "functional"}

__all__ = ["available_backends", "hadamard_transform"]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
