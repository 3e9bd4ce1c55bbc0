"""The method as a `torch.optim.Optimizer`, whose noise is drawn again instead of being kept."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_flag, check_range
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Settings, Transform, count_of
from hexad.rl_graph.gs_poweropt.weighting import (
    EssWatch,
    effective_samples,
    log_weights,
    weights,
    without_failures,
)


class GSPowerOptimizer(torch.optim.Optimizer):
    """Minimise a closure's loss over parameters without gradients.

        optimizer = GSPowerOptimizer(model.parameters(), lr=0.05, sigma=0.02, popsize=64)
        loss = optimizer.step(lambda: criterion(model(x), y))  # popsize calls of the closure

    A sample's noise comes from a generator seeded by (seed, step, sample), and is drawn again for the
    gradient: memory is a few copies of the parameters, whatever popsize is (Salimans et al. 2017).

    Args:
        params: tensors or groups of them; a group may have its own `lr` and `sigma`. The gradient's norm is
            taken over all groups.
        lr: length of a step; a scheduler of torch may change it.
        sigma: standard deviation of the samples.
        transform: `"exp"` (EPGS) or `"power"` (PGS), as in `Settings`.
        power: N.
        popsize: K, samples in a step.
        decay: steps after which the length is half; `inf` for a constant one.
        normalize: divide the gradient by its norm.
        baseline: `"mean"`, or `"none"` for the paper's update.
        shift: with `"power"`, f = shift - loss.
        scale: None or `"std"`.
        nan_policy: `"raise"` or `"worst"`.
        keep_best: keep a copy of the best sample seen, for `load_best`.
        distributed: share out the samples among the ranks of `torch.distributed`'s default group, whose
            parameters must be the same; losses and the gradient are summed, and noise is never sent.
        seed: of the noise.

    Attributes:
        ess: effective samples of the last step.
        stalls: steps that had no direction.

    Raises:
        InputError: a setting makes no sense, or a parameter is no floating-point tensor.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        sigma: float = 0.1,
        *,
        transform: Transform = "exp",
        power: float = 2.0,
        popsize: int = 100,
        decay: float = 1000.0,
        normalize: bool = True,
        baseline: Baseline = "mean",
        shift: float | None = None,
        scale: Scale = None,
        nan_policy: NanPolicy = "raise",
        keep_best: bool = True,
        distributed: bool = False,
        seed: int = 0,
    ) -> None:
        self.settings = Settings(
            transform, power, sigma, popsize, lr, decay, normalize, baseline, shift, scale, nan_policy
        )
        self.keep_best = check_flag("keep_best", keep_best)
        self.distributed = check_flag("distributed", distributed)
        # In the groups, so that state_dict() has them.
        kept = {"gs_step": 0, "gs_best_loss": math.inf, "gs_seed": count_of("seed", seed, 0)}
        super().__init__(params, {"lr": lr, "sigma": sigma, **kept})
        for group in self.param_groups:
            check_range("lr", group["lr"], 0, low_open=True)
            check_range("sigma", group["sigma"], 0, low_open=True)
            for parameter in group["params"]:
                if not parameter.is_floating_point():
                    raise InputError(
                        f"a parameter is of {parameter.dtype}; give floating-point tensors alone"
                    )
        self.ess, self.stalls = math.nan, 0
        self._watch = EssWatch(self.settings)
        if distributed and not dist.is_initialized():
            raise InputError("distributed=True needs torch.distributed.init_process_group first")

    @property
    def best_loss(self) -> float:
        """The lowest loss seen."""
        return self.param_groups[0]["gs_best_loss"]

    def _own_samples(self) -> range:
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if self.distributed else (0, 1)
        return range(rank, self.settings.popsize, ranks)

    def _noise(self, sample: int) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Each group, parameter and its part of a sample's noise, the same whenever it is asked for."""
        first = self.param_groups[0]
        entropy = [first["gs_seed"], first["gs_step"], sample]
        words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        generators: dict[torch.device, torch.Generator] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                device = parameter.device
                if device not in generators:
                    # Of its own on each device; torch takes 63 bits.
                    generators[device] = torch.Generator(device).manual_seed(int(words[0] >> np.uint64(1)))
                noise = torch.empty_like(parameter, memory_format=torch.contiguous_format)
                yield group, parameter, noise.normal_(generator=generators[device])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> float:  # ty: ignore[incompatible-method-override]
        """Evaluate the closure at `popsize` samples around the parameters and move these by a step.

        Args:
            closure: returns the loss, a number or a tensor of one. It is called without autograd, which a
                loss that has derivatives in it can turn on by `torch.enable_grad`.

        Returns:
            the mean of the samples' finite losses.

        Raises:
            InputError: there is no closure, or a loss is NaN or inf (the parameters are then as before).
        """
        if closure is None:
            raise InputError("GSPowerOptimizer.step needs a closure that returns the loss")
        losses = self._losses(closure)
        usable, failed = without_failures(losses, self.settings)
        if failed is not None:
            hint = "" if losses[failed] == -np.inf else "; mend the closure, or pass nan_policy='worst'"
            raise InputError(f"the loss of sample {failed} is {losses[failed]}{hint}")
        moved, self.ess = False, math.nan
        if np.isfinite(usable).all():
            logs = log_weights(usable, self.settings)
            self.ess = effective_samples(logs)
            if usable.min() < self.best_loss:
                for group in self.param_groups:
                    group["gs_best_loss"] = float(usable.min())
                if self.keep_best:
                    for group, parameter, noise in self._noise(int(np.argmin(usable))):
                        self.state[parameter]["best"] = torch.add(parameter, noise, alpha=group["sigma"])
            moved = self._move(logs)
        self.stalls += not moved
        self._watch(self.ess)
        for group in self.param_groups:
            group["gs_step"] += 1
        finite = losses[np.isfinite(losses)]
        return float(finite.mean()) if len(finite) else math.nan

    def _losses(self, closure: Callable[[], Any]) -> np.ndarray:
        losses = np.zeros(self.settings.popsize)
        means = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}
        try:
            for sample in self._own_samples():
                for group, parameter, noise in self._noise(sample):
                    # From the copy: adding and subtracting again would not give the same parameters.
                    torch.add(means[parameter], noise, alpha=group["sigma"], out=parameter.data)
                losses[sample] = float(closure())
        finally:
            for parameter, mean in means.items():
                parameter.data.copy_(mean)
        return self._summed(torch.from_numpy(losses)).numpy()

    def _summed(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, by way of the device that the group's backend can reach."""
        if not self.distributed:
            return tensor
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        moved = tensor.to(device)
        dist.all_reduce(moved)
        return moved.to(tensor.device)

    def _move(self, logs: np.ndarray) -> bool:
        w = weights(logs, self.settings.baseline)
        largest = np.abs(w).max()
        if largest == 0:
            return False
        gradients = {p: torch.zeros_like(p) for group in self.param_groups for p in group["params"]}
        for sample in self._own_samples():
            for _, parameter, noise in self._noise(sample):
                gradients[parameter].add_(noise, alpha=float(w[sample] / largest))
        gradients = {parameter: self._summed(gradient) for parameter, gradient in gradients.items()}
        norms = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients.values()]
        norm = math.hypot(*norms)
        if norm == 0 or not math.isfinite(norm):
            return False
        for group in self.param_groups:
            decayed = self.settings.step_length(group["gs_step"]) / self.settings.learning_rate
            factor = 1 / norm if self.settings.normalize else largest / (group["sigma"] * np.exp(logs).sum())
            for parameter in group["params"]:
                parameter.add_(gradients[parameter], alpha=float(group["lr"] * decayed * factor))
        return True

    @torch.no_grad()
    def load_best(self) -> None:
        """Set the parameters to the best sample seen.

        Raises:
            InputError: there is none, or `keep_best` is off.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if "best" not in self.state[parameter]:
                    raise InputError("there is no best sample: call step first, with keep_best=True")
                parameter.copy_(self.state[parameter]["best"])
