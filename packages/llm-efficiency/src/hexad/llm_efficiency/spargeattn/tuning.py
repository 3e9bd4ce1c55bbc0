"""Hyper-parameters of the filter per head, from a handful of real inputs (arXiv 2502.18137, section 3.6).

For each head and each value of theta the smallest tau is bisected that keeps the relative L1 error of the
output below l1, and then the smallest lambda of the second filter that keeps it below l2. Results of several
inputs are pooled in bins of theta; the bin that skips most wins, and the most careful value in it is taken.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_flag, check_range
from hexad.kernels.sparse_attention import block_sparse_attention
from hexad.llm_efficiency.spargeattn.attention import Backend, dense_attention
from hexad.llm_efficiency.spargeattn.calls import AttentionCall, check_call
from hexad.llm_efficiency.spargeattn.params import HeadParams
from hexad.llm_efficiency.spargeattn.prediction import Prediction, Ranking
from hexad.llm_efficiency.spargeattn.scoring import TINY, l1_norm, tiles_kept, widened

# Grids of the authors' autotune: theta -1, -15/16 ... 15/16; where a bisection starts, where it stops.
THETAS = tuple(step / 16 for step in range(-16, 16))
BIN = 2 / 16
TAU_START, TAU_WIDTH = 0.1, 1e-3
LAMBDA_MAX, LAMBDA_START, LAMBDA_WIDTH = 50.0, 20.0, 0.1
LEAST_SPARSITY = 0.1

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Trials:
    """What one input says of each theta and head; all of shape (thetas, heads), NaN where not tried.

    Attributes:
        tau: the smallest tau found whose error is below l1.
        pv_threshold: the smallest lambda found whose error is below l2.
        sparsity: share of the needed tiles that the first filter skips at that tau.
    """

    tau: Float[Tensor, "thetas heads"]
    pv_threshold: Float[Tensor, "thetas heads"]
    sparsity: Float[Tensor, "thetas heads"]


class SpargeTuner:
    """Finds theta, tau and lambda for each head of a layer.

    Args:
        l1: relative L1 error, sum |O - O'| / sum |O|, allowed to the first filter alone.
        l2: error allowed to both filters, above l1; not looked at without `second_filter`. The paper's pairs:
            0.08, 0.09 for Llama 3.1; 0.05, 0.06 for CogVideoX and Mochi; 0.07, 0.08 for Stable Diffusion 3.5
            and Flux.
        block_q: queries in a block.
        block_k: keys in a block.
        smooth_k: predict from keys without their mean token.
        second_filter: tune lambda too; needs a backend that applies it (native, triton or reference).
        min_inputs: fewest inputs to pool; the authors use 5.
        backend: of the trial runs.

    Attributes:
        trials_: the `Trials` of each input, after `fit`.
        sparsity_: mean sparsity in the winning bin, shape (heads,), after `fit`.
        dense_: heads that skip too little to be worth it and stay dense, shape (heads,), after `fit`.

    Raises:
        InputError: l1 not above 0, l2 not above l1, or another argument out of its range.
    """

    trials_: list[Trials]
    sparsity_: Float[Tensor, " heads"]
    dense_: Bool[Tensor, " heads"]

    def __init__(
        self,
        l1: float = 0.07,
        l2: float = 0.08,
        *,
        block_q: int = 128,
        block_k: int = 64,
        smooth_k: bool = True,
        second_filter: bool = True,
        min_inputs: int = 5,
        backend: Backend = "auto",
    ) -> None:
        check_range("l1", l1, 0, low_open=True)
        if check_flag("second_filter", second_filter):
            check_range("l2", l2, l1, low_open=True)
        check_count("min_inputs", min_inputs)
        check_choice("backend", backend, get_args(Backend))
        HeadParams(block_q=block_q, block_k=block_k, smooth_k=smooth_k)  # refuses what it would refuse later
        self.l1, self.l2 = l1, l2
        self.block_q, self.block_k, self.smooth_k = block_q, block_k, smooth_k
        self.second_filter = second_filter
        self.min_inputs = min_inputs
        self.backend: Backend = backend

    def fit(self, calls: Sequence[AttentionCall], progress: Progress | None = None) -> HeadParams:
        """Tune on calls of one layer and return its parameters.

        Args:
            calls: inputs of the same layer, at least `min_inputs`, of any lengths; test on others.
            progress: called as `progress(fraction, note)`.

        Raises:
            InputError: too few calls, or something else; different numbers of heads, NaN or infinity.
        """
        if not isinstance(calls, Sequence):
            raise InputError(f"calls must be a sequence of AttentionCall, not {type(calls).__name__}")
        for call in calls:
            check_call(call)
        if len(calls) < self.min_inputs:
            raise InputError(
                f"{len(calls)} inputs to tune on, fewer than the {self.min_inputs} wanted; record "
                "more, or lower min_inputs"
            )
        if len(heads := {call.q.shape[1] for call in calls}) > 1:
            raise InputError(
                f"the calls have different numbers of heads {sorted(heads)}: tune layer by layer"
            )
        trials = []
        for index, call in enumerate(calls):
            trials.append(self.search(call, _part(progress, index, len(calls))))
        return self.pool(trials)

    @torch.no_grad()
    def search(self, call: AttentionCall, progress: Progress | None = None) -> Trials:
        """Bisect tau and lambda for every theta on one input, all heads at once."""
        check_call(call)
        heads = call.q.shape[1]
        trial_run = _TrialRun(call, self.backend, self.block_q, self.block_k)
        prediction = Prediction(
            call.q, call.k, call.is_causal, call.scale, self.block_q, self.block_k, self.smooth_k
        )
        tau, pv, sparsity = torch.full((3, len(THETAS), heads), math.nan, dtype=torch.float64)
        going = torch.ones(heads, dtype=torch.bool)
        before = None
        for t, theta in enumerate(THETAS):
            verdicts = prediction.judge(theta)
            # A head whose blocks are all judged as at the last theta would find the same tau and lambda.
            same = (
                torch.zeros(heads, dtype=torch.bool) if before is None else prediction.same(before, verdicts)
            )
            before = verdicts
            repeat = going & same
            for found in (tau, pv, sparsity):
                found[t, repeat] = found[t - 1, repeat]
            if len(active := (going & ~same).nonzero().flatten()):
                ranking = prediction.rank(verdicts, active)
                tau[t, active] = self._bisect_tau(trial_run, ranking, active)
                mask = ranking.mask(tau[t, active])
                sparsity[t, active] = ranking.sparsity(mask)
                # A sum of float32 shares can round past 1, so even tau = 1 may drop a tile that matters.
                if len(last := (tau[t, active] == 1).nonzero().flatten()):
                    unmet = trial_run.error(mask[:, last], active[last]) >= self.l1
                    sparsity[t, active[last[unmet]]] = 0
                pv[t, active] = (
                    self._bisect_lambda(trial_run, mask, active) if self.second_filter else LAMBDA_MAX
                )
            going &= sparsity[t] >= LEAST_SPARSITY
            if progress is not None:
                progress((t + 1) / len(THETAS), f"theta {theta:g}, {int(going.sum())} of {heads} heads")
            if not going.any():
                break
        return Trials(tau, pv, sparsity)

    def _bisect_tau(self, run: "_TrialRun", ranking: Ranking, heads: Tensor) -> Float[Tensor, " active"]:
        """The smallest tau, to 1e-3, at which the error was seen to be below l1; else 1."""
        low, high = torch.zeros(len(heads), dtype=torch.float64), torch.ones(len(heads), dtype=torch.float64)
        middle = torch.full_like(low, TAU_START)
        # Masks grow with tau, so equal counts mean equal masks, whose verdict is known already.
        kept_low, kept_high = torch.full((len(heads),), -1), tiles_kept(ranking.mask(high))
        while (open_ := high - low > TAU_WIDTH).any():
            mask = ranking.mask(middle)
            kept = tiles_kept(mask)
            good = kept == kept_high
            if len(look := (open_ & ~good & (kept != kept_low)).nonzero().flatten()):
                good[look] = run.error(mask[:, look], heads[look]) < self.l1
            better, worse = open_ & good, open_ & ~good
            high[better], kept_high[better] = middle[better], kept[better]
            low[worse], kept_low[worse] = middle[worse], kept[worse]
            middle = (low + high) / 2
        return high

    def _bisect_lambda(self, run: "_TrialRun", mask: Tensor, heads: Tensor) -> Float[Tensor, " active"]:
        """The smallest lambda in [0, 50], to 0.1, at which the error was seen to be below l2."""
        low, high = torch.zeros(len(heads)), torch.full((len(heads),), LAMBDA_MAX)
        middle = torch.full_like(low, LAMBDA_START)
        while len(look := (high - low > LAMBDA_WIDTH).nonzero().flatten()):
            good = run.error(mask[:, look], heads[look], middle[look]) < self.l2
            high[look[good]] = middle[look[good]]
            low[look[~good]] = middle[look[~good]]
            middle = (low + high) / 2
        return high.double()

    def pool(self, trials: Sequence[Trials]) -> HeadParams:
        """Pool the trials of several inputs into the parameters of a layer.

        In each bin of theta (two steps wide) the sparsities of all inputs are summed; from the bin with the
        largest sum come the largest theta, tau and lambda. Where its mean sparsity is at most 0.1 the head
        stays dense.
        """
        bins = torch.tensor([math.floor((theta + 1) / BIN) for theta in THETAS])
        thetas = torch.tensor(THETAS, dtype=torch.float64)
        sparsity = torch.stack([trial.sparsity for trial in trials])
        tau = torch.stack([trial.tau for trial in trials])
        pv = torch.stack([trial.pv_threshold for trial in trials])
        heads = sparsity.shape[2]
        sums = torch.zeros(int(bins.max()) + 1, heads, dtype=torch.float64)
        sums.index_add_(0, bins, sparsity.nan_to_num(0).sum(0))
        inside = (bins[:, None] == sums.argmax(0)) & ~sparsity.isnan()  # (inputs, thetas, heads)
        self.trials_ = list(trials)
        self.sparsity_ = sparsity.where(inside, 0).sum((0, 1)) / inside.sum((0, 1))
        self.dense_ = self.sparsity_ <= LEAST_SPARSITY

        def largest(values: Tensor, where_dense: float) -> Tensor:
            return values.where(inside, -math.inf).amax((0, 1)).where(~self.dense_, where_dense).float()

        return HeadParams(
            theta=largest(thetas[:, None], 1.0),
            tau=largest(tau, 1.0),
            pv_threshold=largest(pv, LAMBDA_MAX) if self.second_filter else None,
            attention_sink=True,
            block_q=self.block_q,
            block_k=self.block_k,
            smooth_k=self.smooth_k,
        )


class _TrialRun:
    """Attention over tile masks of some heads of one call, scored against its dense output."""

    def __init__(self, call: AttentionCall, backend: Backend, block_q: int, block_k: int) -> None:
        group = call.q.shape[1] // call.k.shape[1]
        self.q = call.q
        self.k, self.v = (x.repeat_interleave(group, dim=1) for x in (call.k, call.v))
        self.call, self.backend = call, backend
        self.block_q, self.block_k = block_q, block_k
        dense = dense_attention(call.q, call.k, call.v, is_causal=call.is_causal, scale=call.scale)
        self.dense = widened(dense)
        self.norm = l1_norm(self.dense).clamp_min_(TINY)

    def error(
        self,
        mask: Bool[Tensor, "batch active q_blocks k_blocks"],
        heads: Int[Tensor, " active"],
        pv_threshold: Float[Tensor, " active"] | None = None,
    ) -> Float[Tensor, " active"]:
        q, k, v = (x if len(heads) == x.shape[1] else x[:, heads] for x in (self.q, self.k, self.v))
        output = block_sparse_attention(
            q,
            k,
            v,
            mask,
            is_causal=self.call.is_causal,
            scale=self.call.scale,
            block_q=self.block_q,
            block_k=self.block_k,
            pv_threshold=pv_threshold,
            backend=self.backend,
        )
        every = len(heads) == self.dense.shape[1]
        dense, norm = (self.dense, self.norm) if every else (self.dense[:, heads], self.norm[heads])
        return (l1_norm(widened(output) - dense) / norm).cpu()


def _part(progress: Progress | None, index: int, count: int) -> Progress | None:
    """The progress of one input as a part of all."""
    if progress is None:
        return None
    return lambda fraction, note: progress(
        (index + fraction) / count, f"input {index + 1} of {count}, {note}"
    )
