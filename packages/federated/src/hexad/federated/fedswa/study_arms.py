"""The study's arms: what each is on digits and on quadratics, and the rate that it trains best at."""

from dataclasses import dataclass, field
from typing import Any

from hexad.federated.fedswa.quadratics import Descent

SAM_RADIUS = 0.05
RATES = {
    "fedmoswa": 0.3,
    "fedswa": 0.3,
    "fedmoswa-mean": 0.3,
    "fedswa-mean": 0.3,
    "fedavg": 0.3,
    "fedavg-equal": 0.3,
    "fedsam": 0.3,
    "scaffold": 0.3,
}
"""Of 0.03, 0.1, 0.3 and 1 the best at a seed that no preset uses, for each arm by itself; see `sweep`."""


@dataclass(frozen=True)
class Variant:
    """An arm.

    Args:
        simulation: fields of `Simulation`.
        descent: the same algorithm on quadratics.
        everywhere: measured at all partitions, not only at the first.
        doubled: twice FedAvg's traffic.
    """

    simulation: dict[str, Any]
    descent: Descent
    everywhere: bool = True
    doubled: bool = field(default=False)


_PLAIN = {"rho": 1.0, "server_alpha": 1.0}

VARIANTS = {
    "fedmoswa": Variant(
        {"strategy": "fedmoswa"}, Descent("momentum", rho=0.1, server_alpha=1.5), doubled=True
    ),
    "fedswa": Variant({"strategy": "fedswa"}, Descent(rho=0.1, server_alpha=1.5)),
    "fedmoswa-mean": Variant(
        {"strategy": "fedmoswa", **_PLAIN}, Descent("momentum"), everywhere=False, doubled=True
    ),
    "fedswa-mean": Variant({"strategy": "fedswa", "server_alpha": 1.0}, Descent(rho=0.1), everywhere=False),
    "fedavg": Variant({"strategy": "fedavg"}, Descent()),
    "fedavg-equal": Variant({"strategy": "fedswa", **_PLAIN}, Descent()),
    "fedsam": Variant({"strategy": "fedsam", "sam_radius": SAM_RADIUS}, Descent(sam_radius=SAM_RADIUS)),
    "scaffold": Variant({"strategy": "scaffold"}, Descent("scaffold"), doubled=True),
}
