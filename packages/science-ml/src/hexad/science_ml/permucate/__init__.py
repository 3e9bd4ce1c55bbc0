"""PermuCATE: which covariates drive the heterogeneity of a treatment effect, with p-values and intervals.

`PermuCATE().fit(X, y, treatment)` cross-fits and ranks; `conditional_permutation_importance` measures one
fitted model; `loco_cate` and `permutation_cate` are the baselines. Learners are `DRLearner`, `TLearner`, and
those of EconML, causalml and DoubleML. Source: Paillard et al., ICML 2025, arXiv 2408.13002.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.science_ml.permucate.adapters import CausalMLCate, DoubleMLCate, EconMLCate
    from hexad.science_ml.permucate.estimator import PermuCATE, loco_cate, permutation_cate
    from hexad.science_ml.permucate.figures import draw_importances
    from hexad.science_ml.permucate.importance import conditional_permutation_importance
    from hexad.science_ml.permucate.inference import Importances, adjust
    from hexad.science_ml.permucate.learners import DRLearner, NuisanceModels, TLearner
    from hexad.science_ml.permucate.ridge import StandardizedRidge
    from hexad.science_ml.permucate.risks import Nuisances

_HOMES = {
    "CausalMLCate": "adapters",
    "DRLearner": "learners",
    "DoubleMLCate": "adapters",
    "EconMLCate": "adapters",
    "Importances": "inference",
    "NuisanceModels": "learners",
    "Nuisances": "risks",
    "PermuCATE": "estimator",
    "StandardizedRidge": "ridge",
    "TLearner": "learners",
    "adjust": "inference",
    "conditional_permutation_importance": "importance",
    "draw_importances": "figures",
    "loco_cate": "estimator",
    "permutation_cate": "estimator",
}

__all__ = [
    "CausalMLCate",
    "DRLearner",
    "DoubleMLCate",
    "EconMLCate",
    "Importances",
    "NuisanceModels",
    "Nuisances",
    "PermuCATE",
    "StandardizedRidge",
    "TLearner",
    "adjust",
    "conditional_permutation_importance",
    "draw_importances",
    "loco_cate",
    "permutation_cate",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
