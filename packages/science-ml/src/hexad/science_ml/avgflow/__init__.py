"""SO(3)-averaged flow matching: 3D conformers of molecules by a flow whose target is exact, not sampled.

`ConformerGenerator.from_checkpoint().embed(mol, 10)` makes conformers as RDKit's EmbedMultipleConfs does;
`averaged_velocity` and `matrix_fisher_mean` are the method for any point sets; `FlowMatcher` and
`make_reflow_pairs` train networks. Source: Cao et al., ICML 2025, arXiv 2507.09785.
"""

import importlib
from typing import Any

_HOMES = {
    "Ensemble": "ensembles",
    "MoleculeBatch": "batching",
    "MoleculeGraph": "batching",
    "collate": "batching",
    "featurize": "features",
    "load_ensembles": "library",
    "read_molecule": "molecules",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
