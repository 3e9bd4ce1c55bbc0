"""The light face of FedSWA: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="fedswa",
    title="FedSWA and FedMoSWA: stochastic weight averaging for clients whose data differ",
    paper=(
        'J. Liu et al., "Improving Generalization in Federated Learning with Highly Heterogeneous Data via '
        'Momentum-Based Stochastic Controlled Weight Averaging", ICML 2025, arXiv 2507.20016'
    ),
    claim=(
        "A cyclic client rate and a server that goes beyond the clients' mean find flatter minima than "
        "FedAvg on heterogeneous data; control variates averaged over rounds make them better still."
    ),
    tags=("federated-learning", "flower", "non-iid", "weight-averaging", "control-variates", "scaffold"),
    study="hexad.federated.fedswa.study:STUDY",
    commands="hexad.federated.fedswa.commands:app",
)
