"""The method as a `torch.optim.Optimizer`, whose noise is drawn again instead of being kept."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_flag, check_range
from hexad.rl_graph.gs_poweropt.arguments import array_of
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Settings, Transform, count_of
from hexad.rl_graph.gs_poweropt.weighting import (
    EssWatch,
    effective_samples,
    log_weights,
    weights,
    without_failures,
)

OF_GROUPS = ("sigma", "learning_rate")
"""Settings that each group of parameters has of its own."""


class GSPowerOptimizer(torch.optim.Optimizer):
    """Minimise a closure's loss over parameters without gradients.

        optimizer = GSPowerOptimizer(model.parameters(), lr=0.05, sigma=0.02, popsize=64)
        loss = optimizer.step(lambda: criterion(model(x), y))  # popsize calls of the closure

    A sample's noise comes from a generator seeded by (seed, step, sample), and is drawn again for the
    gradient: memory is a few copies of the parameters, whatever popsize is (Salimans et al. 2017).

    Args:
        params: tensors or groups of them; a group may have its own `lr` and `sigma`. The gradient's norm is
            taken over all groups. As with torch's optimizers, those with `requires_grad=False` stay as they
            are. In half precision a step below a parameter's resolution is lost.
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
        InputError: a setting makes no sense, or a parameter is no floating-point tensor, is given twice, or
            none of them requires a gradient.
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
        settings = {name: value for name, value in asdict(self.settings).items() if name not in OF_GROUPS}
        kept = {
            "gs_step": 0, "gs_best_loss": math.inf, "gs_seed": count_of("seed", seed, 0),
            "gs_settings": settings,
        }  # fmt: skip
        super().__init__(params, {"lr": lr, "sigma": sigma, **kept})
        for group in self.param_groups:
            check_range("lr", group["lr"], 0, low_open=True)
            check_range("sigma", group["sigma"], 0, low_open=True)
            if len({*map(id, group["params"])}) < len(group["params"]):
                raise InputError("a parameter is given twice; give each once")
            for parameter in group["params"]:
                if not parameter.is_floating_point():
                    raise InputError(
                        f"a parameter is of {parameter.dtype}; give floating-point tensors alone"
                    )
        if not any(self._moved()):
            raise InputError("no parameter has requires_grad=True; call requires_grad_() on those to move")
        self.ess, self.stalls = math.nan, 0
        self._watch = EssWatch(self.settings)
        if distributed and not dist.is_initialized():
            raise InputError("distributed=True needs torch.distributed.init_process_group first")

    @property
    def best_loss(self) -> float:
        """The lowest loss seen."""
        return self.param_groups[0]["gs_best_loss"]

    def _moved(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Each group and parameter that is to be moved."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    yield group, parameter

    def _own_samples(self) -> range:
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if self.distributed else (0, 1)
        return range(rank, self.settings.popsize, ranks)

    def _noise(self, sample: int) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
        """Each group, parameter and its part of a sample's noise, the same whenever it is asked for."""
        first = self.param_groups[0]
        entropy = [first["gs_seed"], first["gs_step"], sample]
        words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        generators: dict[torch.device, torch.Generator] = {}
        for group, parameter in self._moved():
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
            InputError: there is no closure, a loss is no real number, or is NaN or inf, or a group's lr or
                sigma is none that one can step with. The parameters are then as before.
        """
        if closure is None:
            raise InputError("GSPowerOptimizer.step needs a closure that returns the loss")
        for group in self.param_groups:
            check_range("lr", group["lr"], 0)
            check_range("sigma", group["sigma"], 0, low_open=True)
        self._forget_other_best()
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
        means = {p: p.detach().clone() for _, p in self._moved()}
        try:
            for sample in self._own_samples():
                for group, parameter, noise in self._noise(sample):
                    # From the copy: adding and subtracting again would not give the same parameters.
                    torch.add(means[parameter], noise, alpha=group["sigma"], out=parameter.data)
                losses[sample] = _number(closure())
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
        gradients = {p: torch.zeros_like(p) for _, p in self._moved()}
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
                if parameter in gradients:
                    parameter.add_(gradients[parameter], alpha=float(group["lr"] * decayed * factor))
        return True

    def _forget_other_best(self) -> None:
        """Forget a best sample of other parameters, such as those before a layer was unfrozen."""
        kept = {p for group in self.param_groups for p in group["params"] if "best" in self.state.get(p, {})}
        if not kept or kept == {parameter for _, parameter in self._moved()}:
            return
        for parameter in kept:
            del self.state[parameter]["best"]
        for group in self.param_groups:
            group["gs_best_loss"] = math.inf

    @torch.no_grad()
    def load_best(self) -> None:
        """Set the parameters to the best sample seen.

        Raises:
            InputError: there is none of these parameters, or `keep_best` is off.
        """
        moved = [parameter for _, parameter in self._moved()]
        if any("best" not in self.state.get(parameter, {}) for parameter in moved):
            raise InputError("there is no best sample of these parameters: call step, with keep_best=True")
        for parameter in moved:
            parameter.copy_(self.state[parameter]["best"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`; lr, sigma and seed are then the state's.

        Raises:
            InputError: it is no state of this optimizer, or of other settings or parameters. The optimizer is
                then as before.
        """
        own = self.param_groups[0]
        try:
            groups, states = state_dict["param_groups"], state_dict["state"]
            settings = [group["gs_settings"] for group in groups]
            numbers = [(float(group["lr"]), float(group["sigma"])) for group in groups]
            counts = [(group["gs_step"], group["gs_seed"], float(group["gs_best_loss"])) for group in groups]
            best = {key: state["best"].shape for key, state in states.items() if "best" in state}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"this is no state of GSPowerOptimizer ({type(error).__name__}: {error})"
            ) from None
        for name, value in own["gs_settings"].items():
            found = next((given.get(name) for given in settings if given.get(name) != value), value)
            if found != value:
                raise InputError(
                    f"the state is of an optimizer with {name} = {found}, and this one has {value}; make it "
                    "with the settings of the state"
                )
        for (lr, sigma), (step, seed, _) in zip(numbers, counts, strict=True):
            check_range("lr of the state", lr, 0)
            check_range("sigma of the state", sigma, 0, low_open=True)
            count_of("gs_step of the state", step, 0)
            count_of("gs_seed of the state", seed, 0)
        keys = [key for group in groups for key in group["params"]]
        mine = [parameter for group in self.param_groups for parameter in group["params"]]
        unlike = [p.shape for key, p in zip(keys, mine, strict=False) if best.get(key, p.shape) != p.shape]
        if unlike:
            raise InputError(f"the state's best sample fits no parameter of shape {tuple(unlike[0])}")
        try:
            super().load_state_dict(state_dict)
        except ValueError as error:  # other numbers of groups or parameters
            raise InputError(f"the state is of other parameters ({error})") from None


def _number(loss: Any) -> float:
    """The loss that a closure returned.

    Raises:
        InputError: it is not one real number.
    """
    value = array_of(loss)
    if value.size != 1 or value.dtype.kind not in "fiub":
        kind = type(loss).__name__ if value.dtype.kind == "O" else f"{value.dtype} of shape {value.shape}"
        raise InputError(f"the closure must return the loss, one real number, and gave {kind}")
    return float(value.reshape(()))
