"""The light face of PermuCATE: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="permucate",
    title="PermuCATE: which covariates drive the heterogeneity of a treatment effect",
    paper=(
        "J. Paillard, A. Reyero Lobo, V. Kolodyazhniy, B. Thirion, D. A. Engemann, "
        '"Measuring Variable Importance in Heterogeneous Treatment Effects with Confidence", ICML 2025, '
        "arXiv 2408.13002"
    ),
    claim=(
        "Permuting a covariate conditionally on the others measures its share in the variation of the "
        "treatment effect with a lower variance, and so more power, than refitting without it (LOCO)."
    ),
    tags=("causal-inference", "treatment-effects", "variable-importance", "uplift", "scikit-learn"),
    study="hexad.science_ml.permucate.study:STUDY",
    commands="hexad.science_ml.permucate.commands:app",
)
