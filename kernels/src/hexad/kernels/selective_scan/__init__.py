"""Mamba's selective scan (S6): a linear recurrence whose step, input and output matrices depend on the input.

`selective_scan` has the signature of `mamba_ssm.selective_scan_fn` and runs forward and backward on CPUs and
GPUs, keeping a state only every few steps (Mamba, arXiv 2312.00752; used by Vision Mamba, arXiv 2401.09417).
Names load on first use, so importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.selective_scan.functional import available_backends, selective_scan

_HOME = {"available_backends": "functional", "selective_scan": "functional"}

__all__ = ["available_backends", "selective_scan"]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
