"""CostFilter-AD: filters the matching costs of any anomaly detector into sharper anomaly maps.

`CostFilter(detector)` wraps a detector, `fit` trains its network on synthetic anomalies, and `predict` gives
maps and scores. `TemplateMatching` and `FeatureReconstruction` are detectors with weights from a wheel; any
object with the methods of `Detector` serves. Source: Zhang et al., ICML 2025, arXiv 2505.01476.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.vision_robustness.costfilter_ad.detectors import (
        Detector,
        FeatureReconstruction,
        Matching,
        TemplateMatching,
    )
    from hexad.vision_robustness.costfilter_ad.features import Lite0Features
    from hexad.vision_robustness.costfilter_ad.filter import LIGHT, CostFilter, FilterConfig, Mixture
    from hexad.vision_robustness.costfilter_ad.fitting import FitConfig, choose_base, fit
    from hexad.vision_robustness.costfilter_ad.losses import LossWeights, filter_loss
    from hexad.vision_robustness.costfilter_ad.matching import CostVolume, cost_volume
    from hexad.vision_robustness.costfilter_ad.metrics import Quality, measure
    from hexad.vision_robustness.costfilter_ad.network import CostFilterNet, NetworkConfig
    from hexad.vision_robustness.costfilter_ad.samples import SampleBank, make_samples
    from hexad.vision_robustness.costfilter_ad.saving import load_filter, save_filter
    from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly
    from hexad.vision_robustness.costfilter_ad.textures import packaged_textures

_HOMES = {
    "LIGHT": "filter",
    "CostFilter": "filter",
    "CostFilterNet": "network",
    "CostVolume": "matching",
    "Detector": "detectors",
    "FeatureReconstruction": "detectors",
    "FilterConfig": "filter",
    "FitConfig": "fitting",
    "Lite0Features": "features",
    "LossWeights": "losses",
    "Matching": "detectors",
    "Mixture": "filter",
    "NetworkConfig": "network",
    "Quality": "metrics",
    "SampleBank": "samples",
    "SyntheticAnomaly": "synthetic",
    "TemplateMatching": "detectors",
    "choose_base": "fitting",
    "cost_volume": "matching",
    "filter_loss": "losses",
    "fit": "fitting",
    "load_filter": "saving",
    "make_samples": "samples",
    "measure": "metrics",
    "packaged_textures": "textures",
    "save_filter": "saving",
}

__all__ = [
    "LIGHT",
    "CostFilter",
    "CostFilterNet",
    "CostVolume",
    "Detector",
    "FeatureReconstruction",
    "FilterConfig",
    "FitConfig",
    "Lite0Features",
    "LossWeights",
    "Matching",
    "Mixture",
    "NetworkConfig",
    "Quality",
    "SampleBank",
    "SyntheticAnomaly",
    "TemplateMatching",
    "choose_base",
    "cost_volume",
    "filter_loss",
    "fit",
    "load_filter",
    "make_samples",
    "measure",
    "packaged_textures",
    "save_filter",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
