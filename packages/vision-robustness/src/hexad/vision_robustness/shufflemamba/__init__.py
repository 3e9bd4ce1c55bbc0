"""ShuffleMamba: stochastic layer-wise shuffle (SLWS), a regulariser for Vision Mamba, and such a network.

`apply_slws(model)` shuffles the tokens of each block of a model at random while it trains. `VisionMamba` (in
timm as `vim_slws_tiny`, `vim_slws_small` ...) is a bidirectional Mamba for CPUs and GPUs, which loads the
weights of Vim and Mamba-Reg. Source: Huang et al., ICML 2025, arXiv 2408.17081, and its authors' code.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.vision_robustness.shufflemamba.checkpoints import load_official
    from hexad.vision_robustness.shufflemamba.mixer import VimBlock, VimMixer
    from hexad.vision_robustness.shufflemamba.network import VisionMamba
    from hexad.vision_robustness.shufflemamba.shuffling import layer_probs, shuffle_restore
    from hexad.vision_robustness.shufflemamba.wrapping import (
        SLWS,
        apply_slws,
        forced_shuffle,
        remove_slws,
        slws_rate,
    )

_HOMES = {
    "SLWS": "wrapping",
    "VimBlock": "mixer",
    "VimMixer": "mixer",
    "VisionMamba": "network",
    "apply_slws": "wrapping",
    "forced_shuffle": "wrapping",
    "layer_probs": "shuffling",
    "load_official": "checkpoints",
    "remove_slws": "wrapping",
    "shuffle_restore": "shuffling",
    "slws_rate": "wrapping",
}

__all__ = [
    "SLWS",
    "VimBlock",
    "VimMixer",
    "VisionMamba",
    "apply_slws",
    "forced_shuffle",
    "layer_probs",
    "load_official",
    "remove_slws",
    "shuffle_restore",
    "slws_rate",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
