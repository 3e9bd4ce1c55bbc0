"""What a training starts from: a name of timm with random weights, a checkpoint of Vim, or a run of ours."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import near_miss
from hexad.vision_robustness.shufflemamba import registry
from hexad.vision_robustness.shufflemamba.checkpoints import checkpoint_filter_fn, read_weights, sizes_of
from hexad.vision_robustness.shufflemamba.network import VisionMamba
from hexad.vision_robustness.shufflemamba.recipe import MEAN, STD, Recipe
from hexad.vision_robustness.shufflemamba.storage import Description, is_network, load_network
from hexad.vision_robustness.shufflemamba.wrapping import apply_slws, shuffled_blocks

DEFAULT = "vim_slws_micro"


@dataclass(frozen=True)
class Start:
    """An architecture, before the number of classes is known.

    Attributes:
        model: timm's name, or empty for a `VisionMamba` of the `arguments`.
        arguments: of the constructor.
        size: side of a picture in pixels.
        state: weights to start from, or none.
        classes: that its head names; of others the head is drawn anew.
    """

    model: str
    arguments: dict[str, Any]
    size: int
    state: dict[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def describe(self, classes: tuple[str, ...]) -> Description:
        """The network for these classes."""
        crop = 0.9 if self.size >= 128 else 1.0
        return Description(self.model, self.arguments, list(classes), self.size, list(MEAN), list(STD), crop)

    def network(self, description: Description, recipe: Recipe) -> nn.Module | None:
        """The network with the weights to start from, or None to draw all of them.

        Raises:
            InputError: weights that do not fit the network, beside those of the head.
        """
        if not self.state:
            return None
        torch.manual_seed(recipe.seed)
        made = description.build(recipe.slws_rate, recipe.slws_schedule)
        state = checkpoint_filter_fn(self.state, made) if isinstance(made, VisionMamba) else self.state
        own = made.state_dict()
        heads = _head_names(made)
        fresh = heads if tuple(description.classes) != self.classes else set()
        kept = {
            name: value
            for name, value in state.items()
            if _shape(own, name) == value.shape and name not in fresh
        }
        if lost := [name for name in own if name not in kept and name not in heads]:
            raise InputError(
                f"the weights do not fit: {lost[0]} is {_shape(state, lost[0])}, not {_shape(own, lost[0])}"
            )
        made.load_state_dict(kept, strict=False)
        return made


def starting_point(
    model: str | None,
    weights: Path | None,
    size: int | None,
    recipe: Recipe,
    class_position: Literal["front", "middle"] = "middle",
) -> Start:
    """What `train` is asked to start from; all that can be wrong with it is said here.

    Args:
        model: timm's name, ours included; None is `DEFAULT`, or what `weights` are of.
        weights: a checkpoint of Vim or Mamba-Reg, or a run of ours (its folder, or the file in it).
        size: side of a picture; None is the model's own.
        recipe: its rates.
        class_position: of a checkpoint's class token, which its tensors do not say, see `sizes_of`.

    Raises:
        InputError: both `model` and `weights`, an unknown name, a size that does not fit, a file that cannot
            be read, or a model that SLWS cannot shuffle.
    """
    if model is not None and weights is not None:
        raise InputError(f"--weights {weights} says what the model is; leave out --model {model}")
    rates = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    if weights is None:
        return _fresh(model or DEFAULT, size, rates, recipe)
    if is_network(weights):
        network, known = load_network(weights)
        side = size or known.size
        sides = {"img_size": side} if "img_size" in known.arguments else {}
        arguments = known.arguments | rates | sides
        start = Start(known.model, arguments, side, network.state_dict(), tuple(known.classes))
    else:
        state = read_weights(weights)
        sizes = sizes_of(state, class_position)
        if sizes["in_chans"] != 3:
            raise InputError(f"{weights} takes {sizes['in_chans']} channels; pictures are read in colour")
        side = size or sizes["img_size"][0]
        del sizes["num_classes"]
        start = Start("", sizes | rates | {"img_size": side}, side, state)
    start.network(start.describe(("a", "b")), recipe)  # refuses what does not fit
    return start


def _fresh(name: str, size: int | None, rates: dict[str, Any], recipe: Recipe) -> Start:
    known = timm.list_models()
    if name not in known:
        raise InputError(f"timm has no model {name!r}; {near_miss(name, known)}")
    config = timm.models.get_pretrained_cfg(name)
    side = size or int(config.input_size[-1] if config else 224)
    arguments: dict[str, Any] = rates | {"img_size": side}
    try:
        with torch.device("meta"):  # no memory, no time
            timm.create_model(name, num_classes=2, **arguments)
    except TypeError:
        arguments = dict(rates)  # convolutional networks take any size, and do not ask
    if recipe.slws_rate and name not in registry.default_cfgs:
        # Once with every block shuffled, so that one that cannot be is refused now.
        network = timm.create_model(name, num_classes=2, **arguments)
        apply_slws(network, 1.0, lambda place: 1.0).train()
        with torch.no_grad():
            network(torch.zeros(2, 3, side, side))
        if not all(shuffle.reached for _, shuffle in shuffled_blocks(network)):
            raise InputError(f"{name} does not call its blocks one by one, so they cannot be shuffled")
    return Start(name, arguments, side)


def _head_names(network: nn.Module) -> set[str]:
    """Names of the classifier's tensors."""
    get: Any = getattr(network, "get_classifier", lambda: None)
    classifier = get()
    parts = classifier if isinstance(classifier, tuple | list) else (classifier,)
    owned = {id(tensor) for part in parts if isinstance(part, nn.Module) for tensor in part.parameters()}
    return {name for name, tensor in network.named_parameters() if id(tensor) in owned}


def _shape(state: dict[str, Tensor], name: str) -> Any:
    return state[name].shape if name in state else "missing"
