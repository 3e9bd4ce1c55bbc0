"""SO(3)-averaged flow matching: 3D conformers of molecules by a flow whose target is exact, not sampled.

`ConformerGenerator.from_checkpoint().embed(mol, 10)` makes conformers as RDKit's EmbedMultipleConfs does;
`averaged_velocity` and `matrix_fisher_mean` are the method for any points; `FlowMatcher`, `train_base` and
`make_reflow_pairs` train networks. Source: Cao et al., ICML 2025, arXiv 2507.09785.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.science_ml.avgflow.batching import MoleculeBatch, MoleculeGraph, collate
    from hexad.science_ml.avgflow.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from hexad.science_ml.avgflow.datasets import read_dataset
    from hexad.science_ml.avgflow.ensembles import Ensemble, make_ensemble
    from hexad.science_ml.avgflow.equivariant import EquivariantFlow, EquivariantFlowConfig
    from hexad.science_ml.avgflow.features import featurize
    from hexad.science_ml.avgflow.figures import draw_overlays
    from hexad.science_ml.avgflow.flow import FlowMatcher
    from hexad.science_ml.avgflow.generator import ConformerGenerator
    from hexad.science_ml.avgflow.library import load_ensembles
    from hexad.science_ml.avgflow.metrics import (
        ConformerMetrics,
        conformer_metrics,
        mmff_energies,
        relax,
        rmsd_matrix,
    )
    from hexad.science_ml.avgflow.molecules import read_molecule
    from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig
    from hexad.science_ml.avgflow.reflow import distill_loss, make_reflow_pairs, reflow_loss
    from hexad.science_ml.avgflow.rotations import matrix_fisher_mean
    from hexad.science_ml.avgflow.sampling import integrate, time_grid
    from hexad.science_ml.avgflow.stereo import stereo_kept
    from hexad.science_ml.avgflow.targets import averaged_target, averaged_velocity, kabsch_target
    from hexad.science_ml.avgflow.training import FlowTrainingConfig, refine, train_base

_HOMES = {
    "Checkpoint": "checkpoint",
    "ConformerFlow": "network",
    "ConformerFlowConfig": "network",
    "ConformerGenerator": "generator",
    "ConformerMetrics": "metrics",
    "Ensemble": "ensembles",
    "EquivariantFlow": "equivariant",
    "EquivariantFlowConfig": "equivariant",
    "FlowMatcher": "flow",
    "FlowTrainingConfig": "training",
    "MoleculeBatch": "batching",
    "MoleculeGraph": "batching",
    "averaged_target": "targets",
    "averaged_velocity": "targets",
    "collate": "batching",
    "conformer_metrics": "metrics",
    "distill_loss": "reflow",
    "draw_overlays": "figures",
    "featurize": "features",
    "integrate": "sampling",
    "kabsch_target": "targets",
    "load_checkpoint": "checkpoint",
    "load_ensembles": "library",
    "make_ensemble": "ensembles",
    "make_reflow_pairs": "reflow",
    "matrix_fisher_mean": "rotations",
    "mmff_energies": "metrics",
    "read_dataset": "datasets",
    "read_molecule": "molecules",
    "refine": "training",
    "reflow_loss": "reflow",
    "relax": "metrics",
    "rmsd_matrix": "metrics",
    "save_checkpoint": "checkpoint",
    "stereo_kept": "stereo",
    "time_grid": "sampling",
    "train_base": "training",
}

__all__ = [
    "Checkpoint",
    "ConformerFlow",
    "ConformerFlowConfig",
    "ConformerGenerator",
    "ConformerMetrics",
    "Ensemble",
    "EquivariantFlow",
    "EquivariantFlowConfig",
    "FlowMatcher",
    "FlowTrainingConfig",
    "MoleculeBatch",
    "MoleculeGraph",
    "averaged_target",
    "averaged_velocity",
    "collate",
    "conformer_metrics",
    "distill_loss",
    "draw_overlays",
    "featurize",
    "integrate",
    "kabsch_target",
    "load_checkpoint",
    "load_ensembles",
    "make_ensemble",
    "make_reflow_pairs",
    "matrix_fisher_mean",
    "mmff_energies",
    "read_dataset",
    "read_molecule",
    "refine",
    "reflow_loss",
    "relax",
    "rmsd_matrix",
    "save_checkpoint",
    "stereo_kept",
    "time_grid",
    "train_base",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
