"""How the weights of a Vision Mamba are drawn, beside those of the scans (see `VimMixer`)."""

from typing import Any

import torch
from torch import nn

TRUNCATED = 0.87962566103423978
"""Deviation of a standard normal that is cut off at two."""


@torch.no_grad()
def initialise(network: Any) -> None:
    """Draw a `VisionMamba`'s stem, tokens, positions, output projections and head, as the official code does.

    The stem is LeCun's normal; positions, registers, head and neck are normal with deviation 0.02; the output
    projections are torch's default over the root of the depth; the class token and biases are zero.
    """
    stem = network.patch_embed.proj
    nn.init.trunc_normal_(stem.weight, std=1.0)
    stem.weight.mul_(stem.weight[0].numel() ** -0.5 / TRUNCATED)
    nn.init.zeros_(stem.bias)
    nn.init.trunc_normal_(network.pos_embed, std=0.02)
    if network.registers:
        nn.init.trunc_normal_(network.cls_token, std=0.02)
        nn.init.trunc_normal_(network.pos_embed_cls, std=0.02)
    for block in network.layers:
        nn.init.kaiming_uniform_(block.mixer.out_proj.weight, a=5**0.5)
        block.mixer.out_proj.weight.div_(network.depth**0.5)
    for linear in (network.head, getattr(network, "neck", None)):
        if isinstance(linear, nn.Linear):
            initialise_linear(linear)


@torch.no_grad()
def initialise_linear(linear: nn.Linear) -> None:
    """A head's weights, normal with deviation 0.02 (cut at 2), and a bias of zero."""
    nn.init.trunc_normal_(linear.weight, std=0.02)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
