"""Masks of plain attention with padding or cached keys, kept as one flag a key.

transformers asks an attention for the mask it wants, once a forward pass. Where the mask is the causal (or
the full) one over the keys that are no padding, this wants the keys alone: samples are then cut to their
keys and run without a mask. uint8 tells these masks from the boolean and additive ones that reach an
attention otherwise. Any other mask (packed sequences, windows, a user's own) is made as
scaled_dot_product_attention wants it.
"""

from typing import Any

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask


def key_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Bool[Tensor, "batch seen"] | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """What an `AttentionMaskInterface` registers: None, flags of keys as uint8, or another mask.

    The flags have shape (batch, 1, 1, n): keys from n on do not exist yet (a static cache), and under a
    causal mask the last query stands at key n - 1.
    """
    causal = mask_function is causal_mask_function and allow_is_causal_skip
    full = mask_function is bidirectional_mask_function and allow_is_bidirectional_skip
    # A single query needs no causality; its mask is that of sdpa, which decodes.
    if not (causal or full) or q_length == 1 or kv_offset != 0 or torch.compiler.is_compiling():
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # ty: ignore[invalid-argument-type] (static caches give tensors)
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            device=device,
            **options,
        )
    seen = kv_length if full else int(q_offset) + q_length
    if attention_mask is None:
        flags = torch.ones(batch_size, seen, dtype=torch.bool, device=device)
    else:
        # Keys that a mask shorter than the cache does not speak of are padding, as they are to sdpa_mask.
        missing = max(seen - attention_mask.shape[1], 0)
        flags = torch.nn.functional.pad(attention_mask.bool(), (0, missing))[:, :seen]
    if (full or seen == q_length) and bool(flags.all()):
        return None
    return flags.to(torch.uint8)[:, None, None]


def is_key_mask(mask: Tensor | None) -> bool:
    """Whether a mask is one of flags of keys."""
    return mask is not None and mask.dtype == torch.uint8


def expand_key_mask(
    mask: UInt8[Tensor, "batch 1 1 n"], n_q: int, is_causal: bool
) -> Bool[Tensor, "batch 1 n_q n"]:
    """The boolean mask that scaled_dot_product_attention takes instead."""
    n = mask.shape[-1]
    flags = mask.bool().expand(-1, -1, n_q, -1)
    return flags & flags.new_ones(n_q, n).tril(n - n_q) if is_causal else flags


def key_ranges(mask: UInt8[Tensor, "batch 1 1 n"]) -> dict[tuple[int, int], list[int]] | None:
    """The samples by the range [start, stop) of their keys, or None where padding lies between keys."""
    flags = mask[:, 0, 0].bool()
    count = flags.sum(1)
    start = flags.to(torch.uint8).argmax(1)
    stop = start + count
    place = torch.arange(flags.shape[1], device=flags.device)
    if not torch.equal((place >= start[:, None]) & (place < stop[:, None]), flags):
        return None
    groups: dict[tuple[int, int], list[int]] = {}
    for sample, bounds in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        groups.setdefault(bounds, []).append(sample)
    return groups
