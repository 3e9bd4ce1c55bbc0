"""The light face of Janus: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="janus",
    title="Janus: secure aggregation by two servers, which clients verify",
    paper=(
        'L. Pu, C. Gu, J. Lin, Z. Huang, "Janus: Dual-Server Multi-Round Secure Aggregation with '
        'Verifiability for Federated Learning", ICML 2025'
    ),
    claim=(
        "Two servers that do not collude sum clients' updates without seeing an update or the sum; every "
        "client verifies the sum, and its cost does not grow with the number of clients."
    ),
    tags=("secure-aggregation", "privacy", "verifiability", "flower", "commitments"),
    study="hexad.federated.janus.study:STUDY",
    commands="hexad.federated.janus.commands:app",
)
