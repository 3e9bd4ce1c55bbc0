"""GS-PowerOpt: global optimisation of black boxes by Gaussian smoothing of a power-transformed objective.

`minimize_gspower` follows `scipy.optimize.minimize` and serves as its `method=`; `GSPower` asks for values
and is told them; `GSPowerOptimizer` trains torch modules without gradients.
Source: Xu, ICML 2025, arXiv 2412.05204 (PGS and EPGS).
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
    from hexad.rl_graph.gs_poweropt.minimize import minimize_gspower
    from hexad.rl_graph.gs_poweropt.settings import Settings
    from hexad.rl_graph.gs_poweropt.torch_optimizer import GSPowerOptimizer

_HOMES = {
    "GSPower": "ask_tell",
    "GSPowerOptimizer": "torch_optimizer",
    "Settings": "settings",
    "minimize_gspower": "minimize",
}

__all__ = ["GSPower", "GSPowerOptimizer", "Settings", "minimize_gspower"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
