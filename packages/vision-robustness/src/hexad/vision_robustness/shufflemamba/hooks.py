"""The shuffle around one block, as two forward hooks that a deep copy or a pickle takes along."""

import copy
import inspect
import threading
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.vision_robustness.shufflemamba.shuffling import (
    Permutation,
    check_permutation,
    draw_permutation,
    leading,
    permute_tokens,
    restore,
)

TIED = ("mask", "position", "causal", "rope", "rotary")
"""In the names of arguments that tie tokens to their places; a shuffle would leave them behind."""

_NAMES = ("hidden_states", "hidden", "x", "residual")


class BlockShuffle:
    """Permutes a block's tokens before it runs and restores them after it, through two forward hooks.

    Args:
        p: probability of a shuffle in a forward pass.
        generator: see `draw_permutation`.
        per_sample: see `draw_permutation`.
        streams: names of those parameters of the block's `forward` that are tokens; None: every positional
            tensor and the keywords hidden_states, x and residual, or every tensor of a first argument that
            is a mapping.
        always: shuffle outside training too, for tests of how much a network depends on order.
        share: of the rate, see `layer_probs`; None if it was not by one that `p` was set.

    Raises:
        InputError: `p` outside [0, 1], a generator that is none of the CPU, or streams that are no names.
    """

    def __init__(
        self,
        p: float,
        generator: torch.Generator | None = None,
        per_sample: bool = False,
        streams: Sequence[str] | None = None,
        always: bool = False,
        share: float | None = None,
    ) -> None:
        if generator is not None and not (
            isinstance(generator, torch.Generator) and generator.device.type == "cpu"
        ):
            raise InputError(f"generator must be a torch.Generator of the CPU, or None, not {generator!r}")
        if streams is not None and (
            isinstance(streams, str)
            or not isinstance(streams, Iterable)
            or not all(isinstance(name, str) for name in streams)
        ):
            raise InputError(f"streams must be a list of names of a block's arguments, not {streams!r}")
        self.p, self.generator, self.per_sample = check_range("p", p, 0, 1), generator, per_sample
        self.share = share
        self.streams, self.always = None if streams is None else tuple(streams), always
        self.handles: list[Any] = []
        self.order: list[str] = []
        self.reached = False
        # By thread: the replicas of DataParallel share this object.
        self._drawn: dict[int, tuple[Permutation | None, tuple[int, int]]] = {}

    def attach(self, block: nn.Module) -> None:
        """Hook it around `block`."""
        self.order = list(inspect.signature(block.forward).parameters)
        self.handles = [
            block.register_forward_pre_hook(self.before, with_kwargs=True),
            block.register_forward_hook(self.after, prepend=True),
        ]

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def before(self, block: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        """The block's arguments on permuted tokens, or None to leave them."""
        self.reached = True
        self._drawn.pop(threading.get_ident(), None)  # of a call that failed on its way
        if self.p == 0 or not (block.training or self.always):
            return None
        inside = bool(args) and isinstance(args[0], Mapping)
        named: Mapping[Any, Any] = args[0] if inside else {**dict(enumerate(args)), **kwargs}
        names = self._names(named, inside)
        self._refuse_tied(named, names)
        keys = self._keys(block, named, len(args), inside)
        first = named[keys[0]]
        if first.ndim != 3:
            raise InputError(
                f"{type(block).__name__} was called with a tensor of shape {tuple(first.shape)}; SLWS "
                "shuffles tokens of shape (batch, tokens, width), not maps of pixels"
            )
        lead = leading(tuple(named[key] for key in keys))
        self._refuse_unknown(named, names, keys, lead[1])
        perm = draw_permutation(self.p, *lead, first.device, self.generator, self.per_sample)
        self._drawn[threading.get_ident()] = perm, lead
        if perm is None:
            return None
        check_permutation(perm, lead)
        moved = {**named, **{key: permute_tokens(named[key], perm) for key in keys}}
        if inside:
            return (_refilled(args[0], moved), *args[1:]), kwargs
        return tuple(moved.pop(place) for place in range(len(args))), moved

    def after(self, block: nn.Module, args: tuple, output: Any) -> Any:
        """The block's output with its tokens in order again."""
        drawn = self._drawn.pop(threading.get_ident(), None)
        return None if drawn is None else restore(output, *drawn)

    def _names(self, named: Mapping[Any, Any], inside: bool) -> dict[Any, str]:
        """What the block's `forward` calls each argument."""
        order = [] if inside else self.order
        return {key: order[key] if isinstance(key, int) and key < len(order) else str(key) for key in named}

    def _refuse_tied(self, named: Mapping[Any, Any], names: dict[Any, str]) -> None:
        """Refuse masks, positions and the like, unless they are `streams` and shuffled with the tokens."""
        for key, name in names.items():
            given = named[key] is not None and named[key] is not False
            if given and name not in (self.streams or ()) and any(sign in name.lower() for sign in TIED):
                raise InputError(
                    f"a block was called with {name}, which is tied to the order of its tokens and cannot "
                    "be shuffled with them; leave it out"
                )

    def _refuse_unknown(
        self, named: Mapping[Any, Any], names: dict[Any, str], keys: list[Any], tokens: int
    ) -> None:
        """Refuse a tensor of as many places as there are tokens, of which nobody said what it is."""
        if self.streams is not None:
            return
        first = named[keys[0]]
        for key, name in names.items():
            values = named[key] if isinstance(named[key], tuple | list) else [named[key]]
            for value in values:
                known = key in keys and value.shape == first.shape
                if isinstance(value, Tensor) and tokens in value.shape and not known:
                    raise InputError(
                        f"a block was called with {name} of shape {tuple(value.shape)}, which may belong to "
                        f"its {tokens} tokens; say by `streams` which arguments are tokens"
                    )

    def _keys(self, block: nn.Module, named: Mapping[Any, Any], positional: int, inside: bool) -> list[Any]:
        """Where the streams are: places, keywords, or keys of the mapping."""
        if self.streams is not None:
            wanted: Iterable[Any] = self.streams
            if not inside:
                parameters = inspect.signature(block.forward).parameters
                order = list(parameters)
                more = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
                unknown = [] if more else [name for name in self.streams if name not in order]
                if unknown:
                    raise InputError(
                        f"{type(block).__name__} takes no {unknown[0]!r}; name those of its forward "
                        f"({', '.join(order)}) by `streams`"
                    )
                places = {name: place for place, name in enumerate(order[:positional])}
                wanted = [places.get(name, name) for name in self.streams]
        else:
            wanted = named if inside else (*range(positional), *_NAMES)
        keys = [key for key in wanted if isinstance(named.get(key), Tensor)]
        if not keys:
            raise InputError(
                f"no tokens were found among the arguments of {type(block).__name__}; name those of its "
                f"forward ({', '.join(inspect.signature(block.forward).parameters)}) by `streams`"
            )
        return keys


def _refilled(given: Mapping[Any, Any], moved: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping of the same kind with other values."""
    if type(given) is dict or not isinstance(given, MutableMapping):
        return moved
    made = copy.copy(given)
    for key, value in moved.items():
        made[key] = value
    return made
