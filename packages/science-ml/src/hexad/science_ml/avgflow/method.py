"""The light face of AvgFlow: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="avgflow",
    title="AvgFlow: 3D conformers by SO(3)-averaged flow matching, reflow and distillation",
    paper=(
        "Z. Cao, M. Geiger, A. S. Costa, D. Reidenbach, K. Kreis, T. Geffner, F. Pellegrini, G. Zhou, "
        'E. Kucukbenli, "Efficient Molecular Conformer Generation with SO(3)-Averaged Flow Matching and '
        'Reflow", ICML 2025, arXiv 2507.09785'
    ),
    claim=(
        "Regressing on the velocity averaged exactly over all rotations of the conformers trains a better "
        "flow in the same steps than one rotation or an alignment does; reflow and distillation make it good "
        "in one step."
    ),
    tags=("molecules", "conformers", "flow-matching", "rdkit", "generative"),
    study="hexad.science_ml.avgflow.study:STUDY",
    commands="hexad.science_ml.avgflow.commands:app",
)
