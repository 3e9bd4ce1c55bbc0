"""Joint scaling laws of dense and mixture-of-experts models (ICML 2025), and plans by them.

`plan` answers which width, tokens and number of experts under a budget of FLOPs, memory and inference;
`JointMoELaw` is the paper's law, `fit` fits it (or Chinchilla's, or Clark's) to your own runs, and
`JointMoERegressor` does so as a scikit-learn estimator. Names load on first use.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.llm_efficiency.moe_laws.architecture import Architecture, SwitchArch
    from hexad.llm_efficiency.moe_laws.curves import IsoFlop, flop_savings, isoflop, learning_rate
    from hexad.llm_efficiency.moe_laws.fitting import FitResult, fit
    from hexad.llm_efficiency.moe_laws.law import (
        ChinchillaLaw,
        ClarkLaw,
        JointMoELaw,
        Law,
        law_from_json,
    )
    from hexad.llm_efficiency.moe_laws.planning import Candidate, Plan, plan
    from hexad.llm_efficiency.moe_laws.ranges import Ranges
    from hexad.llm_efficiency.moe_laws.regressor import JointMoERegressor
    from hexad.llm_efficiency.moe_laws.runs import Runs, read_runs

_HOME = {
    "Architecture": "architecture",
    "Candidate": "planning",
    "ChinchillaLaw": "law",
    "ClarkLaw": "law",
    "FitResult": "fitting",
    "IsoFlop": "curves",
    "JointMoELaw": "law",
    "JointMoERegressor": "regressor",
    "Law": "law",
    "Plan": "planning",
    "Ranges": "ranges",
    "Runs": "runs",
    "SwitchArch": "architecture",
    "fit": "fitting",
    "flop_savings": "curves",
    "isoflop": "curves",
    "law_from_json": "law",
    "learning_rate": "curves",
    "plan": "planning",
    "read_runs": "runs",
}

__all__ = [
    "Architecture",
    "Candidate",
    "ChinchillaLaw",
    "ClarkLaw",
    "FitResult",
    "IsoFlop",
    "JointMoELaw",
    "JointMoERegressor",
    "Law",
    "Plan",
    "Ranges",
    "Runs",
    "SwitchArch",
    "fit",
    "flop_savings",
    "isoflop",
    "law_from_json",
    "learning_rate",
    "plan",
    "read_runs",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
