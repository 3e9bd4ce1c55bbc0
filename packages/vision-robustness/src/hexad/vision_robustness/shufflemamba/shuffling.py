"""Stochastic layer-wise shuffle (SLWS): the four steps of one layer (Huang et al., ICML 2025, section 3.2).

1. allocation: layer l of L has the probability p_l = rate * l / (L - 1), `layer_probs`;
2. sampling: one Bernoulli(p_l) draw a forward pass, while training only, `draw_permutation`;
3. shuffle: one permutation of all tokens, class and registers too, of hidden states and residual alike;
4. restoration: outputs are put back by the inverse permutation, `shuffle_restore`.

A layer f becomes P^T f(P x, P residual). Positions were added before the first layer, so tokens carry theirs.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range

Schedule = Literal["linear", "constant"] | Callable[[float], float]
Permutation = Int[Tensor, " tokens"] | Int[Tensor, "batch tokens"]


def layer_probs(depth: int, rate: float, schedule: Schedule = "linear") -> tuple[float, ...]:
    """The probability of a shuffle for each of `depth` layers.

    Args:
        depth: layers.
        rate: probability of the last layer, in [0, 1].
        schedule: "linear" rises from 0 to `rate` with depth; "constant" is 0 for the first layer and `rate`
            for all others (the variant the authors' code keeps as a comment); a function maps the depth of a
            layer, 0 for the first and 1 for the last, to its share of `rate` in [0, 1].

    Raises:
        InputError: a rate or a share outside [0, 1], or no layers.
    """
    check_count("depth", depth)
    check_range("rate", rate, 0, 1)
    places = [layer / (depth - 1) if depth > 1 else 0.0 for layer in range(depth)]
    if callable(schedule):
        return tuple(rate * check_range(f"schedule({place:g})", schedule(place), 0, 1) for place in places)
    check_choice("schedule", schedule, ("linear", "constant"))
    if schedule == "linear":
        return tuple(rate * place for place in places)
    return tuple(0.0 if place == 0 else float(rate) for place in places)


@torch.compiler.disable
def draw_permutation(
    p: float,
    batch: int,
    tokens: int,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
    per_sample: bool = False,
) -> Permutation | None:
    """With probability `p` a random permutation, else None.

    The draws come from the CPU's generator whatever the device, so that a run repeats on any device and that
    activation checkpointing, which restores that generator, sees the same permutation twice.

    Args:
        p: probability.
        batch: samples.
        tokens: length of the sequence.
        device: of the result.
        generator: of the CPU; None takes torch's global one. Processes that seed it alike shuffle alike.
        per_sample: another permutation for each sample. The paper's is one for the whole batch.

    Raises:
        InputError: no tokens, or a block with a generator of its own that is computed a second time for
            activation checkpointing, where it would draw another permutation.
    """
    if tokens < 1:
        raise InputError("the sequence has no tokens (T = 0); nothing to shuffle")
    if generator is not None and torch._C._current_graph_task_id() != -1:
        raise InputError(
            "activation checkpointing replays torch's global generator, not one of your own; "
            "leave out `generator` of apply_slws"
        )
    if p <= 0 or torch.rand((), generator=generator).item() >= p:
        return None
    if per_sample:
        drawn = torch.rand(batch, tokens, generator=generator).argsort(1)
    else:
        drawn = torch.randperm(tokens, generator=generator)
    return drawn.to(device)


def permute_tokens(x: Tensor, perm: Permutation) -> Tensor:
    """Tokens of `x` (batch, tokens, ...) in the order `perm`."""
    if perm.ndim == 1:
        return x.index_select(1, perm)
    return x.gather(1, perm.reshape(*perm.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))


def shuffle_restore(
    fn: Callable[..., Any], *streams: Tensor | None, perm: Permutation | None, **options: Any
) -> Any:
    """P^T fn(P x, P residual, ...): run `fn` on permuted tokens and put its outputs back in order.

    Args:
        fn: of the streams; gives a tensor, or tensors in a tuple, list or mapping.
        streams: (batch, tokens, ...) each, or None, such as hidden states and residual.
        perm: the order in which `fn` sees the tokens; None runs `fn` as it is.
        options: handed on to `fn` unchanged.

    Raises:
        InputError: streams of different batch or length, or what is no permutation of their tokens.
    """
    if perm is None:
        return fn(*streams, **options)
    lead = leading(streams)
    check_permutation(perm, lead)
    if not torch.equal(perm.sort(-1).values, torch.arange(lead[1], device=perm.device).expand(perm.shape)):
        raise InputError(f"perm is no permutation: it must hold each of 0 to {lead[1] - 1} once")
    moved = [None if stream is None else permute_tokens(stream, perm) for stream in streams]
    return restore(fn(*moved, **options), perm, lead)


def restore(output: Any, perm: Permutation | None, lead: tuple[int, int]) -> Any:
    """Every tensor of `output` that starts with (batch, tokens) back in the order from before `perm`.

    Raises:
        InputError: there is none, or another one of floats that has no such order: a block that pools,
            merges or transposes tokens, or that gives attention maps. (Vectors and numbers pass.)
    """
    inverse, found = None if perm is None else perm.argsort(-1), 0

    def back(value: Any) -> Any:
        nonlocal found
        if isinstance(value, Tensor):
            if tuple(value.shape[:2]) == lead:
                found += 1
                return value if inverse is None else permute_tokens(value, inverse)
            if value.ndim > 1 and value.is_floating_point():
                raise InputError(
                    f"a block gave a tensor of shape {tuple(value.shape)} for {lead[0]} samples of {lead[1]} "
                    "tokens, whose order cannot be restored; leave it out of `layers`, or out of its outputs"
                )
            return value
        if isinstance(value, Mapping):
            pairs = {key: back(item) for key, item in value.items()}
            return pairs if type(value) is dict else type(value)(**pairs)  # transformers' ModelOutput
        if isinstance(value, (tuple, list)):
            items = [back(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    restored = back(output)
    if not found:
        raise InputError(
            f"a block gave no tensor of ({lead[0]}, {lead[1]}, ...) in a tuple, list or mapping, so its "
            "tokens cannot be put in order again"
        )
    return restored if perm is not None else output


def check_permutation(perm: Permutation, lead: tuple[int, int]) -> None:
    """Refuse a permutation that does not fit (batch, tokens)."""
    if perm.shape[-1] != lead[1] or (perm.ndim == 2 and perm.shape[0] != lead[0]):
        raise InputError(
            f"the permutation has the shape {tuple(perm.shape)} for {lead[0]} samples of {lead[1]} tokens"
        )


def leading(streams: tuple[Any, ...]) -> tuple[int, int]:
    """(batch, tokens) of all streams, which must agree."""
    tensors = [stream for stream in streams if stream is not None]
    if not tensors or not all(isinstance(stream, Tensor) and stream.ndim >= 2 for stream in tensors):
        raise InputError("a block to shuffle must be given tokens of shape (batch, tokens, ...) first")
    first = tuple(tensors[0].shape[:2])
    for other in tensors[1:]:
        if tuple(other.shape[:2]) != first:
            raise InputError(
                f"the residual of shape {tuple(other.shape)} does not fit the hidden states of shape "
                f"{tuple(tensors[0].shape)}; both must have the same batch and tokens"
            )
    if first[1] == 0:
        raise InputError(f"the sequence has no tokens (shape {tuple(tensors[0].shape)}); nothing to shuffle")
    return first
