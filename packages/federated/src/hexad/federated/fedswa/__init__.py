"""FedSWA and FedMoSWA: federated averaging for clients whose data differ, and a SCAFFOLD that is one.

Flower strategies (`FedSWA`, `FedMoSWA`, `Scaffold`) with their client side (`control_variate_mod`,
`cyclic_sgd`), which need the extra `flower`; and the same mathematics as plain functions on named arrays
(`cyclic_lrs`, `local_train`, `next_variate`, `extrapolate`, `update_momentum`), which need torch or numpy.
Source: Liu et al., ICML 2025, arXiv 2507.20016, and its authors' code.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.federated.fedswa.averaging import extrapolate, update_momentum, update_scaffold, weighted_mean
    from hexad.federated.fedswa.client import (
        correction_of,
        cyclic_sgd,
        local_config,
        make_client_app,
        train_reply,
    )
    from hexad.federated.fedswa.local import LocalResult, full_gradient, local_train
    from hexad.federated.fedswa.mods import ControlVariates, control_variate_mod
    from hexad.federated.fedswa.optimizer import CyclicSGD, LocalConfig
    from hexad.federated.fedswa.partitions import partition_labels
    from hexad.federated.fedswa.schedule import RoundSchedule, cyclic_lrs, sum_cyclic_lrs
    from hexad.federated.fedswa.sharpness import flatness, top_hessian_eigenvalue
    from hexad.federated.fedswa.swa_strategy import FedSWA
    from hexad.federated.fedswa.variate_strategies import FedMoSWA, Scaffold
    from hexad.federated.fedswa.variates import correction, next_variate

_HOMES = {
    "ControlVariates": "mods",
    "CyclicSGD": "optimizer",
    "FedMoSWA": "variate_strategies",
    "FedSWA": "swa_strategy",
    "LocalConfig": "optimizer",
    "LocalResult": "local",
    "RoundSchedule": "schedule",
    "Scaffold": "variate_strategies",
    "control_variate_mod": "mods",
    "correction": "variates",
    "correction_of": "client",
    "cyclic_lrs": "schedule",
    "cyclic_sgd": "client",
    "extrapolate": "averaging",
    "flatness": "sharpness",
    "full_gradient": "local",
    "local_config": "client",
    "local_train": "local",
    "make_client_app": "client",
    "next_variate": "variates",
    "partition_labels": "partitions",
    "sum_cyclic_lrs": "schedule",
    "top_hessian_eigenvalue": "sharpness",
    "train_reply": "client",
    "update_momentum": "averaging",
    "update_scaffold": "averaging",
    "weighted_mean": "averaging",
}

__all__ = [
    "ControlVariates",
    "CyclicSGD",
    "FedMoSWA",
    "FedSWA",
    "LocalConfig",
    "LocalResult",
    "RoundSchedule",
    "Scaffold",
    "control_variate_mod",
    "correction",
    "correction_of",
    "cyclic_lrs",
    "cyclic_sgd",
    "extrapolate",
    "flatness",
    "full_gradient",
    "local_config",
    "local_train",
    "make_client_app",
    "next_variate",
    "partition_labels",
    "sum_cyclic_lrs",
    "top_hessian_eigenvalue",
    "train_reply",
    "update_momentum",
    "update_scaffold",
    "weighted_mean",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
