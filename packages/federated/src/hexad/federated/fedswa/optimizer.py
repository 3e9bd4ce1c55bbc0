"""The optimizer of a client's round: plain SGD with a cyclic rate and a corrected gradient (2507.20016)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.federated.fedswa.averaging import check_alike
from hexad.federated.fedswa.schedule import check_cycle, cyclic_lrs


@dataclass(frozen=True)
class LocalConfig:
    """How a client trains in one round.

    Args:
        lr: eta_l, the rate of the first step.
        local_steps: K.
        rho: the cycle heads for rho lr, see `cyclic_lrs`; the paper's best is 0.1.
        weight_decay: added to the gradient, times the weights; 1e-3 in the paper.
        clip_norm: largest norm of gradient and decay over all parameters, before the correction; None clips
            nothing. 10 in the authors' code.
        sam_radius: of sharpness-aware minimisation (Foret et al., arXiv 2010.01412): the gradient is taken
            that far uphill. With it and rho = 1 this is FedSAM's client. 0 is plain SGD.

    Raises:
        InputError: a value is out of range.
    """

    lr: float
    local_steps: int
    rho: float = 0.1
    weight_decay: float = 1e-3
    clip_norm: float | None = 10.0
    sam_radius: float = 0.0

    def __post_init__(self) -> None:
        check_cycle(self.lr, self.local_steps, self.rho)
        object.__setattr__(self, "local_steps", int(self.local_steps))
        check_range("weight_decay", self.weight_decay, 0)
        check_range("sam_radius", self.sam_radius, 0)
        if self.clip_norm is not None:
            check_range("clip_norm", self.clip_norm, 0, low_open=True)


class CyclicSGD(torch.optim.Optimizer):
    """Plain SGD whose rate runs through one round's cycle; make a new one in every round.

    Args:
        named_parameters: `model.named_parameters(remove_duplicate=False)`; those that need no gradient are
            left alone, and of several names of one parameter the first counts.
        config: rates, decay and clipping. (`sam_radius` is of `local_train` only.)

    Attributes:
        steps_taken: calls of `step`.
        lr_sum: rates of the steps taken, summed: what the control variate is computed from.

    Raises:
        InputError: no parameter needs a gradient, one is complex, or they come without names.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], config: LocalConfig) -> None:
        named: dict[str, nn.Parameter] = {}
        owned, self._others = set(), set()
        for pair in named_parameters:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
                raise InputError(
                    "CyclicSGD takes names with the parameters; pass "
                    "model.named_parameters(remove_duplicate=False)"
                )
            name, parameter = pair
            if parameter.requires_grad and parameter.is_complex():
                raise InputError(f"parameter {name!r} is complex; train its real and imaginary parts")
            if parameter.requires_grad and id(parameter) not in owned:
                named[name] = parameter
                owned.add(id(parameter))
            else:
                self._others.add(name)
        if not named:
            raise InputError("no parameter needs a gradient; there is nothing to train")
        super().__init__(list(named.values()), {"lr": config.lr, "weight_decay": config.weight_decay})
        self.config = config
        self.steps_taken = 0
        self.lr_sum = 0.0
        self._named = named
        self._rates = cyclic_lrs(config.lr, config.local_steps, config.rho)
        self._correction: list[Tensor] | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only as part of being made: refuses (`InputError`) parameters that come later."""
        if self.param_groups:
            raise InputError(
                "CyclicSGD trains the parameters it was made with; make a new one with all of them"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuses (`InputError`): a cycle is not gone on with, the next round begins a new one."""
        raise InputError("CyclicSGD lasts one round and loads no state; make a new one in every round")

    def set_correction(self, correction: Mapping[str, Float[Tensor, "..."]] | None) -> None:
        """Add m - c_i to every gradient from now on; None adds nothing.

        Args:
            correction: for each trainable parameter by its name a tensor of its shape. Frozen parameters and
                second names of tied ones may be there too.

        Raises:
            InputError: names or shapes are not those of the trainable parameters.
        """
        if correction is None:
            self._correction = None
            return
        unknown = sorted(correction.keys() - self._named.keys() - self._others)
        missing = sorted(self._named.keys() - correction.keys())
        if unknown or missing:
            what = (
                f"has {unknown[:3]}, which the model does not train"
                if unknown
                else f"lacks {missing[:3]}, which the model trains"
            )
            raise InputError(
                f"the correction {what}; give CyclicSGD model.named_parameters(remove_duplicate=False), and "
                "the strategy parameters=[name for name, _ in that] or fewer that alone need a gradient"
            )
        wanted = {name: tensor for name, tensor in correction.items() if name in self._named}
        moved = {name: torch.as_tensor(a).detach().to(self._named[name]) for name, a in wanted.items()}
        check_alike("the correction", moved, self._named, "the trainable parameters")
        self._correction = [moved[name] for name in self._named]

    @torch.no_grad()
    def step(self, closure: Callable[[], Float[Tensor, ""]] | None = None) -> Float[Tensor, ""] | None:  # ty: ignore[incompatible-method-override]
        """One step: y <- y - eta_k (clip(grad + decay y) + m - c_i).

        Raises:
            InputError: the round's K steps are done.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = self._next_rate()
        parameters, directions = self._directions()
        if self._correction is not None:
            torch._foreach_add_(directions, self._correction)
        torch._foreach_add_(parameters, directions, alpha=-lr)
        self.steps_taken += 1
        self.lr_sum += lr
        return loss

    def _next_rate(self) -> float:
        if self.steps_taken == len(self._rates):
            raise InputError(
                f"step {self.steps_taken + 1} of a round of {self.steps_taken}; set local_steps to the "
                "number of steps that a client takes (batches times local epochs)"
            )
        lr = self._rates[self.steps_taken]
        for group in self.param_groups:
            group["lr"] = lr
        return lr

    def _directions(self) -> tuple[list[Tensor], list[Tensor]]:
        """Parameters and their clipped gradients with decay.

        A parameter without a gradient is skipped as in torch's optimizers, unless there is a correction:
        then its gradient is 0, or the next control variate would be wrong.
        """
        corrected = self._correction is not None
        for name, parameter in self._named.items():
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise InputError(f"the gradient of {name!r} is sparse; make its embedding with sparse=False")
        parameters: list[Tensor] = [p for p in self._named.values() if corrected or p.grad is not None]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to(p.dtype) for p in parameters]
        if not parameters:
            return [], []
        directions = list(torch._foreach_add(gradients, parameters, alpha=self.config.weight_decay))
        if self.config.clip_norm is not None:
            norm = torch.nn.utils.get_total_norm(directions)
            torch._foreach_mul_(directions, (self.config.clip_norm / norm.clamp_min(1e-30)).clamp_max(1.0))
        return parameters, directions
