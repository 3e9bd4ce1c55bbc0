"""QuEST in transformers models: what `save_pretrained` writes, `from_pretrained` brings back, bit for bit.

    model = prepare(AutoModelForCausalLM.from_pretrained(folder), QuestConfig(w_bits=4, a_bits=4))
    ...                                  # the Trainer, or any loop
    model.save_pretrained("trained")     # full-precision weights, and how they are rounded
    convert(model).save_pretrained("packed")

Importing this module registers the method "quest" with transformers, which needs it to read such folders:
`import hexad.llm_efficiency.quest.transformers` before `from_pretrained`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_flag
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.layer import QuestLinear, check_features, check_weight
from hexad.llm_efficiency.quest.model import quantised_layers
from hexad.llm_efficiency.quest.packed import PackedLinear
from hexad.llm_efficiency.quest.surgery import check_sharing, linears_of, swap

try:
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"quest in transformers models needs {error.name!r}, which is not installed; "
        'run: pip install "hexad-llm-efficiency[transformers]"'
    ) from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHOD = "quest"


class QuestQuantizationConfig(QuantizationConfigMixin):
    """The `quantization_config` of a transformers model that QuEST quantises.

    Given to `from_pretrained`, it prepares the model as `prepare` does:

        AutoModelForCausalLM.from_pretrained(folder, quantization_config=QuestQuantizationConfig(w_bits=2))

    Args:
        modules: dotted names of the layers to quantise; None finds them, as `prepare` does.
        packed: whether they are packed; `convert` sets it.
        settings: those of `QuestConfig`.

    Raises:
        InputError: a setting that makes no sense, or is not known.
    """

    def __init__(self, modules: Sequence[str] | None = None, packed: bool = False, **settings: Any) -> None:
        # from_dict hands over everything in config.json.
        method = settings.pop("quant_method", METHOD)
        if method != METHOD:
            raise InputError(f"quant_method is {method!r}; this is the configuration of {METHOD!r}")
        self.quant_method = METHOD  # ty: ignore[invalid-assignment]
        self.settings = QuestConfig.from_dict(settings)
        self.modules = None if modules is None else _names(modules)
        self.packed = check_flag("packed", packed)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for config.json."""
        return {
            "quant_method": METHOD,
            "modules": self.modules,
            "packed": self.packed,
            **self.settings.to_dict(),
        }


class QuestQuantizer(HfQuantizer):
    """Puts the layers in their places before transformers loads their weights."""

    quantization_config: QuestQuantizationConfig

    def _process_model_before_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> None:
        config = self.quantization_config
        settings = config.settings
        if config.packed and not self.pre_quantized:
            raise InputError(
                "these weights are not packed; load them with packed=False and call convert(model)"
            )
        if config.modules is None:
            found = linears_of(model, settings.skip)
        else:
            found = dict(_linear(model, name) for name in config.modules)
            check_sharing(model, found)
        config.modules = list(found)
        layers: dict[str, nn.Module] = {}
        for name, linear in found.items():
            try:
                check_features(linear.in_features, settings)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
            if config.packed:
                layers[name] = PackedLinear(
                    linear.in_features,
                    linear.out_features,
                    settings,
                    bias=linear.bias is not None,
                    device="meta",
                    dtype=linear.weight.dtype,
                )
            else:
                layers[name] = QuestLinear.from_linear(linear, settings)
        swap(model, layers)

    def _process_model_after_weight_loading(
        self, model: "PreTrainedModel", **kwargs: Any
    ) -> "PreTrainedModel":
        for name in self.quantization_config.modules or ():
            layer = model.get_submodule(name)
            if isinstance(layer, PackedLinear):
                # transformers marks what it read, and fills the rest with whatever the memory holds.
                for part, tensor in layer.named_buffers():
                    if part in layer.state_dict() and not getattr(tensor, "_is_hf_initialized", False):
                        raise InputError(f"the folder lacks {name}.{part}; save the packed model again")
                layer.check_loaded(layer.layout, layer.scale, name)
                layer.refresh()
            else:
                try:
                    check_weight(layer.weight)  # ty: ignore[invalid-argument-type]
                except InputError as error:
                    raise InputError(f"{name}: {error}") from None
        return model.requires_grad_(False) if self.quantization_config.packed else model

    def is_serializable(self) -> bool:
        """Both kinds are."""
        return True

    def get_state_dict_and_metadata(self, model: "PreTrainedModel") -> tuple[None, dict[str, Any]]:
        """Called by `save_pretrained`: what is written must be what the configuration says."""
        attach(model)
        return None, {}

    @property
    def is_trainable(self) -> bool:
        """What is packed is not."""
        return not self.quantization_config.packed

    @property
    def is_qat_trainable(self) -> bool:
        """Training with quantisation is what the method is for."""
        return self.is_trainable

    @property
    def is_compileable(self) -> bool:
        """The layers trace whole."""
        return True


# A module that is imported anew (a notebook's reload) registers its new classes in the old ones' place.
AUTO_QUANTIZATION_CONFIG_MAPPING.pop(METHOD, None)
AUTO_QUANTIZER_MAPPING.pop(METHOD, None)
register_quantization_config(METHOD)(QuestQuantizationConfig)
register_quantizer(METHOD)(QuestQuantizer)


def _names(modules: Sequence[str]) -> list[str]:
    listed = isinstance(modules, Sequence) and not isinstance(modules, str)
    if not listed or not all(isinstance(name, str) for name in modules) or not modules:
        raise InputError(f"modules is {modules!r}; give a list of the dotted names of linear layers, or None")
    return list(modules)


def _linear(model: "PreTrainedModel", name: str) -> tuple[str, nn.Linear]:
    """A layer by its name, which may come from the model around this one or from the base model within.

    As for weights, `from_pretrained` takes either.
    """
    base = f"{model.base_model_prefix}."
    for candidate in (name, name.removeprefix(base), base + name):
        try:
            module = model.get_submodule(candidate)
        except AttributeError:
            continue
        if isinstance(module, nn.Linear):
            return candidate, module
    raise InputError(f"the quantisation configuration names {name!r}, which is no linear layer of this model")


def attach(model: "PreTrainedModel") -> None:
    """Note in a prepared or converted model's configuration how its layers are quantised.

    Raises:
        InputError: layers that are quantised in different ways, which one configuration cannot say.
    """
    layers = quantised_layers(model)
    if not layers:
        raise InputError("no layer of the model is quantised any more; it cannot be saved as if it were")
    if any(name.endswith(".base_layer") for name in layers):
        raise InputError(
            "the model holds adapters of peft; save the PeftModel (its adapters), or merge or unload them"
        )
    if len({type(layer) for layer in layers.values()}) > 1:
        raise InputError(
            "some layers are packed and others are not, and such a model would not load again; call convert "
            "on the whole model (prepare's filter_fn chooses layers)"
        )
    settings = next(iter(layers.values())).config
    if any(layer.config != settings for layer in layers.values()):
        raise InputError("the layers are quantised in different ways; one configuration cannot hold them")
    packed = isinstance(next(iter(layers.values())), PackedLinear)
    config = QuestQuantizationConfig(modules=list(layers), packed=packed, **settings.to_dict())
    model.config.quantization_config = config
    # What from_pretrained sets too; the Trainer asks the quantizer whether the model can be trained.
    noted = {"hf_quantizer": QuestQuantizer(config), "quantization_method": METHOD, "is_quantized": True}
    vars(model).update(noted)
