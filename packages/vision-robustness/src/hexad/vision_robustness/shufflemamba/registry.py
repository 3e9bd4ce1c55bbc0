"""The networks by timm's names: `timm.create_model("vim_slws_tiny")` works once this is imported."""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from hexad.vision_robustness.shufflemamba.checkpoints import checkpoint_filter_fn
from hexad.vision_robustness.shufflemamba.network import VisionMamba

RATE, REGISTERS_RATE = 0.5, 0.1
"""The paper's rates of SLWS: trained from scratch, and with registers."""


def _cfg(size: int = 224) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


default_cfgs = generate_default_cfgs(
    {
        "vim_slws_micro": _cfg(32),
        **{f"vim_slws_{size}": _cfg() for size in ("tiny", "small", "middle", "base", "large")},
        **{f"vim_slws_reg_{size}": _cfg() for size in ("tiny", "small", "base", "large")},
    }
)
"""No weights: the authors never released theirs. Those of Vim and Mamba-Reg load from files."""


def _create(name: str, pretrained: bool, sizes: dict[str, Any], given: dict[str, Any]) -> VisionMamba:
    return build_model_with_cfg(
        VisionMamba,
        name,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **(sizes | given),
    )


def _sizes(dim: int, depth: int, registers: int = 0, reduce: int = 1, **more: Any) -> dict[str, Any]:
    rate = REGISTERS_RATE if registers else RATE
    sizes = {"embed_dim": dim, "depth": depth, "slws_rate": rate} | more
    return sizes | ({"registers": registers, "reduce": reduce} if registers else {})


@register_model
def vim_slws_micro(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """For images of about 32 pixels: patches of 4, 64 x 8, states of 8, rate 0.3; 0.3 million parameters."""
    sizes = _sizes(64, 8, img_size=32, patch_size=4, d_state=8, slws_rate=0.3)
    return _create("vim_slws_micro", pretrained, sizes, kwargs)


@register_model
def vim_slws_tiny(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """192 x 24."""
    return _create("vim_slws_tiny", pretrained, _sizes(192, 24), kwargs)


@register_model
def vim_slws_small(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """384 x 24."""
    return _create("vim_slws_small", pretrained, _sizes(384, 24), kwargs)


@register_model
def vim_slws_middle(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """576 x 32, with LayerNorm as the authors have it."""
    return _create("vim_slws_middle", pretrained, _sizes(576, 32, norm="layer"), kwargs)


@register_model
def vim_slws_base(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """768 x 24."""
    return _create("vim_slws_base", pretrained, _sizes(768, 24), kwargs)


@register_model
def vim_slws_large(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """1024 x 48."""
    return _create("vim_slws_large", pretrained, _sizes(1024, 48), kwargs)


@register_model
def vim_slws_reg_tiny(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """192 x 24 with 12 registers (Mamba-Reg)."""
    return _create("vim_slws_reg_tiny", pretrained, _sizes(192, 24, 12), kwargs)


@register_model
def vim_slws_reg_small(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """384 x 24 with 12 registers (Mamba-Reg)."""
    return _create("vim_slws_reg_small", pretrained, _sizes(384, 24, 12, 2), kwargs)


@register_model
def vim_slws_reg_base(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """768 x 24 with 12 registers (Mamba-Reg)."""
    return _create("vim_slws_reg_base", pretrained, _sizes(768, 24, 12, 4), kwargs)


@register_model
def vim_slws_reg_large(pretrained: bool = False, **kwargs: Any) -> VisionMamba:
    """1024 x 48 with 16 registers (Mamba-Reg)."""
    return _create("vim_slws_reg_large", pretrained, _sizes(1024, 48, 16, 8), kwargs)
