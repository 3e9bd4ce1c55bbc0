"""SLWS on a model that is there already: hooks around its blocks leave its names and weights alone."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hexad.core.errors import InputError
from hexad.core.validation import check_flag, check_range
from hexad.vision_robustness.shufflemamba.hooks import BlockShuffle
from hexad.vision_robustness.shufflemamba.shuffling import Schedule, layer_probs

CAUSAL = ("mamba", "mamba2", "falcon_mamba", "jamba", "zamba", "zamba2", "gpt2", "llama")
"""Kinds of transformers' models that are causal without a head that says so."""

SEARCHED = (
    "blocks", "layers", "encoder.layers", "encoder.layer", "encoder.blocks", "backbone.layers",
    "backbone.blocks", "model.layers", "trunk.blocks", "vit.layers", "vit.encoder.layer",
)  # fmt: skip
"""Names under which `apply_slws` looks for the list of blocks, before it takes the longest list there is."""


class SLWS(nn.Module):
    """A block that is shuffled with probability `p` while training: for models that you write yourself.

        layers = nn.ModuleList(SLWS(Block(192), p) for p in layer_probs(24, 0.5))

    For a model that is there already use `apply_slws`, which changes no names of weights.

    Args:
        block: takes tokens (batch, tokens, ...) and maybe a residual of the same batch and tokens.
        p: probability of a shuffle in a forward pass.
        generator: of the CPU; None takes torch's global one.
        per_sample: another permutation for each sample; the paper's is one for the batch.

    Raises:
        InputError: `p` outside [0, 1], or a block that is shuffled already.
    """

    def __init__(
        self, block: nn.Module, p: float, generator: torch.Generator | None = None, per_sample: bool = False
    ) -> None:
        super().__init__()
        _check_unshuffled([block])
        self.block = block
        self.shuffle = BlockShuffle(p, generator, per_sample)
        block._slws = self.shuffle  # ty: ignore[invalid-assignment]
        self.shuffle.attach(block)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The block's outputs, tokens in their order."""
        return self.block(*args, **kwargs)

    def extra_repr(self) -> str:
        """The probability, for `print`."""
        return f"p={self.shuffle.p:g}"


def apply_slws(
    model: nn.Module,
    rate: float = 0.5,
    schedule: Schedule = "linear",
    layers: str | Iterable[nn.Module] | None = None,
    generator: torch.Generator | None = None,
    *,
    per_sample: bool = False,
    streams: Sequence[str] | None = None,
    allow_causal: bool = False,
) -> nn.Module:
    """Shuffle the tokens of each block of `model` at random while it trains.

    The model is changed in place by forward hooks: weights, their names and what `model.eval()` computes stay
    the same, so checkpoints, optimisers and averages of weights need no change. Under DDP each process draws
    its own permutations unless the processes seed `generator` alike.

    Args:
        model: holds a list of blocks, each called as `block(x)`, `block(x, residual)` or with a mapping.
        rate: probability of the last block; 0.5 is the paper's from scratch, 0.1 with registers or to tune
            trained weights; small networks want 0.1 to 0.3.
        schedule: see `layer_probs`.
        layers: the blocks, or the dotted name of their list in the model; None looks for it (`SEARCHED`).
        generator: of the CPU; None takes torch's global one.
        per_sample: another permutation for each sample; the paper's is one for the batch.
        streams: names of those parameters of a block's `forward` that are tokens; None takes all tensors
            given by place, and hidden_states, x and residual given by name.
        allow_causal: shuffle a model that predicts the next token, to which a shuffle shows the future.

    Returns:
        The model.

    Raises:
        InputError: a rate outside [0, 1], no list of blocks, a causal model, or one that is shuffled already.
    """
    check_flag("allow_causal", allow_causal)
    blocks = find_blocks(model, layers)
    check_range("rate", rate, 0, 1)
    shares = layer_probs(len(blocks), 1.0, schedule)
    _check_unshuffled(blocks)
    if not allow_causal and (sign := _causal(model)):
        raise InputError(
            f"{type(model).__name__} predicts the next token ({sign}), and shuffled tokens would show it the "
            "future; pass allow_causal=True if that is meant"
        )
    shuffles = [BlockShuffle(rate * share, generator, per_sample, streams, share=share) for share in shares]
    for block, shuffle in zip(blocks, shuffles, strict=True):
        shuffle.attach(block)
        # On the block itself, so that a deep copy of the model has its own.
        block._slws = shuffle  # ty: ignore[invalid-assignment]
    return model


def remove_slws(model: nn.Module) -> nn.Module:
    """Take the shuffle of `apply_slws` away again.

    Raises:
        InputError: the model has none.
    """
    shuffled = shuffled_blocks(model)
    if not shuffled:
        raise InputError(f"{type(model).__name__} has no SLWS to remove")
    for block, shuffle in shuffled:
        shuffle.detach()
        del block._slws
    return model


@contextmanager
def slws_rate(model: nn.Module, rate: float, schedule: Schedule | None = None) -> Generator[nn.Module]:
    """Another rate while the block runs: for a warm-up, or to fine-tune at a lower rate.

    Args:
        model: of `apply_slws`.
        rate: probability of the last block.
        schedule: see `layer_probs`; None keeps that of `apply_slws`.

    Raises:
        InputError: the model has no SLWS, blocks wrapped by hand and no schedule, or a rate outside [0, 1].
    """
    shuffles = [shuffle for _, shuffle in shuffled_blocks(model)]
    if not shuffles:
        raise InputError(f"{type(model).__name__} has no SLWS; call apply_slws first")
    before = [shuffle.p for shuffle in shuffles]
    check_range("rate", rate, 0, 1)
    if schedule is not None:
        after = layer_probs(len(shuffles), rate, schedule)
    else:
        shares = [shuffle.share for shuffle in shuffles if shuffle.share is not None]
        if len(shares) < len(shuffles):
            raise InputError("blocks were wrapped one by one and have no schedule; pass `schedule`")
        after = [rate * share for share in shares]
    try:
        for shuffle, p in zip(shuffles, after, strict=True):
            shuffle.p = p
        yield model
    finally:
        for shuffle, p in zip(shuffles, before, strict=True):
            shuffle.p = p


@contextmanager
def forced_shuffle(
    model: nn.Module,
    last: float = 0.5,
    layers: str | Iterable[nn.Module] | None = None,
    generator: torch.Generator | None = None,
) -> Generator[nn.Module]:
    """Shuffle the last blocks in every forward pass, in evaluation too: how much does a network need order?

    Args:
        model: any that `apply_slws` takes, with or without SLWS.
        last: share of the blocks, from the end; at least one of them, but for 0.
        layers: the blocks, or the name of their list; None looks for it.
        generator: of the CPU; None takes torch's global one.

    Raises:
        InputError: no list of blocks, or a share outside [0, 1].
    """
    blocks = find_blocks(model, layers)
    share = check_range("last", last, 0, 1)
    count = max(round(len(blocks) * share), 1 if share else 0)
    shuffles = [BlockShuffle(1.0, generator, always=True) for _ in range(count)]
    try:
        for block, shuffle in zip(blocks[len(blocks) - count :], shuffles, strict=True):
            shuffle.attach(block)
        yield model
    finally:
        for shuffle in shuffles:
            shuffle.detach()


def find_blocks(model: nn.Module, layers: str | Iterable[nn.Module] | None = None) -> list[nn.Module]:
    """The model's blocks, in order.

    Args:
        model: where to look.
        layers: the blocks themselves, or the dotted name of their list; None tries the names `SEARCHED`, then
            takes the longest list of at least two modules of one kind.

    Raises:
        InputError: there is none.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise InputError(
            "hooks do not reach into a compiled model; give the model itself, and compile it afterwards"
        )
    found = _found(model, layers)
    for block in found:
        if isinstance(block, nn.ModuleList | nn.ModuleDict):
            raise InputError(
                f"the blocks of {type(model).__name__} are lists of modules, which are never called; pass "
                "the blocks in them as `layers`"
            )
        if _tokens_first(block):
            raise InputError(
                f"{type(block).__name__} takes (tokens, batch, width), and SLWS shuffles the second "
                "dimension; make it with batch_first=True"
            )
    if len({id(block) for block in found}) < len(found):
        raise InputError(
            f"a block stands twice among the blocks of {type(model).__name__}, and can have one probability "
            "only; leave it out of `layers` once"
        )
    return found


def _tokens_first(block: nn.Module) -> bool:
    """Whether a block of torch's own takes tokens before samples."""
    layer = isinstance(block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    place: Any = block.self_attn if layer else block
    known = layer or isinstance(block, nn.RNNBase | nn.MultiheadAttention)
    return known and not place.batch_first


def _found(model: nn.Module, layers: str | Iterable[nn.Module] | None) -> list[nn.Module]:
    if isinstance(layers, str):
        if (found := _blocks_at(model, layers)) is None:
            raise InputError(f"{type(model).__name__} has no list of blocks called {layers!r}")
        return found
    if layers is not None:
        blocks = list(layers) if isinstance(layers, Iterable) else []
        if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
            raise InputError("`layers` must be modules, such as model.blocks, or the name of their list")
        return blocks
    for name in SEARCHED:
        if found := _blocks_at(model, name):
            return found
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    alike = [blocks for blocks in lists if len(blocks) > 1 and len({type(block) for block in blocks}) == 1]
    if alike:
        return max(alike, key=len)
    raise InputError(
        f"{type(model).__name__} has no list of blocks; looked for {', '.join(SEARCHED)} and for any "
        "ModuleList or Sequential of one kind of module: pass `layers`"
    )


def _blocks_at(model: nn.Module, name: str) -> list[nn.Module] | None:
    found: Any = model
    for part in name.split("."):
        found = getattr(found, part, None)
    return list(found) if isinstance(found, nn.ModuleList | nn.Sequential) and len(found) else None


def shuffled_blocks(model: nn.Module) -> list[tuple[nn.Module, BlockShuffle]]:
    """The blocks that SLWS is on, with what shuffles them."""
    pairs = [(module, getattr(module, "_slws", None)) for module in model.modules()]
    return [(module, shuffle) for module, shuffle in pairs if isinstance(shuffle, BlockShuffle)]


def _check_unshuffled(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        if shuffled_blocks(block):
            raise InputError(
                f"{type(block).__name__} has SLWS already; applied twice it would be shuffled twice: call "
                "remove_slws first"
            )


def _causal(model: nn.Module) -> str:
    """By what a model is known to predict the next token, or nothing."""
    config = getattr(model, "config", None)
    generates: Callable[[], bool] | None = getattr(model, "can_generate", None)
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        return "by its name"
    if getattr(config, "is_decoder", False) is True:
        return "config.is_decoder"
    if callable(generates) and generates():
        return "can_generate()"
    if (kind := getattr(config, "model_type", "")) in CAUSAL:
        return f"its kind, {kind}"
    if hasattr(model, "lm_head"):
        return "it has an lm_head"
    return ""
