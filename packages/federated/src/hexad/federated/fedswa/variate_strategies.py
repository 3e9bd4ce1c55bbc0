"""The Flower strategies with control variates: FedMoSWA, and a SCAFFOLD that is one.

Both need `control_variate_mod` in the client app. Sources: Liu et al., ICML 2025, arXiv 2507.20016, and
Karimireddy et al., ICML 2020, arXiv 1910.06378.
"""

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_flag, check_range
from hexad.federated.fedswa.averaging import update_momentum, update_scaffold
from hexad.federated.fedswa.options import RoundKeywords
from hexad.federated.fedswa.swa_strategy import FedSWA

if TYPE_CHECKING:
    from flwr.serverapp import Grid


class FedMoSWA(FedSWA):
    """FedMoSWA: FedSWA with control variates; the server's m is an average over rounds of the clients'.

    Each client corrects its gradients by m - c_i. Twice FedAvg's traffic, and a copy of the parameters on
    each client. Under partial participation m is a mean over few clients, so a bias remains where clients
    differ, which `Scaffold` does not have.

    Args:
        lr: eta_l, see `FedSWA`.
        rho: see `FedSWA`.
        server_alpha: see `FedSWA`.
        gamma: in [0, 1]; how much of the fresh mean enters m. 0.2 is the paper's best.
        local_steps: see `FedSWA`.
        warm_start_m: let m be the mean of the first round's variates, as the authors' code does, in place of
            gamma times it.
        max_staleness: rounds after which a client no longer trusts its c_i and corrects nothing, or None.
        options: the fields of `RoundOptions`.

    Raises:
        InputError: a value is out of range.
    """

    rule = "momentum"

    def __init__(
        self,
        *,
        lr: float | None = None,
        rho: float = 0.1,
        server_alpha: float = 1.5,
        gamma: float = 0.2,
        local_steps: int | None = None,
        warm_start_m: bool = False,
        max_staleness: int | None = None,
        **options: Unpack[RoundKeywords],
    ) -> None:
        check_range("gamma", gamma, 0, 1)
        check_flag("warm_start_m", warm_start_m)
        if max_staleness is not None:
            check_count("max_staleness", max_staleness)
        super().__init__(lr=lr, rho=rho, server_alpha=server_alpha, local_steps=local_steps, **options)
        self.gamma, self.warm_start_m, self.max_staleness = gamma, warm_start_m, max_staleness

    def settings(self) -> dict[str, Any]:
        """As `FedSWA.settings`."""
        own = {"gamma": self.gamma, "warm": self.warm_start_m, "max_staleness": self.max_staleness}
        return super().settings() | own

    def _for_node(self, node: int) -> dict[str, Any]:
        stale = {} if self.max_staleness is None else {"max-staleness": self.max_staleness}
        return super()._for_node(node) | stale

    def _next_variate(self, update: dict[str, np.ndarray], participants: int) -> dict[str, np.ndarray]:
        warm = self.warm_start_m and not self._run.state.counted
        return update_momentum(self._run.state.m, update, 1.0 if warm else self.gamma)


class Scaffold(FedSWA):
    """SCAFFOLD (Karimireddy et al., ICML 2020), option II, with the correction in the gradient.

    The server's variate is the mean of all clients' variates, so heterogeneous clients leave no bias even
    when few take part. A reply that the server did not count is undone on the client at its next visit, or
    the mean would be wrong for good.

    Args:
        lr: eta_l, the clients' constant rate; see `FedSWA`.
        server_lr: eta_g, above 0.
        local_steps: see `FedSWA`.
        clients: M, how many clients there are in all; None takes the most that were connected so far.
        options: the fields of `RoundOptions`.

    Raises:
        InputError: a value is out of range, or `weighted`: the mean of the variates knows no weights, so that
            the optimum would be that of clients weighed alike.
    """

    rule = "difference"

    def __init__(
        self,
        *,
        lr: float | None = None,
        server_lr: float = 1.0,
        local_steps: int | None = None,
        clients: int | None = None,
        **options: Unpack[RoundKeywords],
    ) -> None:
        check_range("server_lr", server_lr, 0, low_open=True)
        if clients is not None:
            check_count("clients", clients)
        super().__init__(lr=lr, rho=1.0, server_alpha=server_lr, local_steps=local_steps, **options)
        if self.options.weighted:
            raise InputError(
                "weighted=True is not for Scaffold, which heads for the optimum of clients weighed alike; "
                "take FedMoSWA, or leave it out"
            )
        self.clients = clients

    def settings(self) -> dict[str, Any]:
        """As `FedSWA.settings`."""
        return super().settings() | {"clients": self.clients}

    def _sample(self, grid: "Grid", number: int) -> list[int]:
        chosen = super()._sample(grid, number)
        if self.clients is not None and self._run.connected > self.clients:
            raise InputError(
                f"{self._run.connected} nodes are connected and Scaffold was told of clients={self.clients}; "
                "give the number of all clients"
            )
        return chosen

    def _next_variate(self, update: dict[str, np.ndarray], participants: int) -> dict[str, np.ndarray]:
        run = self._run
        most = max(run.state.clients, run.connected)
        before = None if self.clients else run.state.clients or None
        return update_scaffold(run.state.m, update, participants, self.clients or most, before)
