"""LAION-C as a transform of torchvision v2."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from hexad.core.errors import InputError
from hexad.core.validation import check_choice
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS, corrupt
from hexad.vision_robustness.laion_c.levels import level_index
from hexad.vision_robustness.laion_c.tiles import TileBank, need_tiles


def _is_pure_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, tv_tensors.TVTensor)


class LaionC(v2.Transform):
    """Distort images inside a `torchvision.transforms.v2.Compose`.

    It takes PIL images and tensors (..., 1 or 3, height, width), uint8 or float in [0, 1], and gives back
    their kind, with three channels; labels, masks and boxes pass through. Randomness comes from torch's
    global generator, as in torchvision: `torch.manual_seed` repeats it, and workers of a DataLoader differ.

    Args:
        name: one of `DISTORTIONS`.
        severity: 1 to 5.
        tiles: a bank, for `mosaic` and `stickers`.
        glitch_seed: for `glitched`: the benchmark's constant 1, another, or None for one an image.

    Raises:
        InputError: unknown name, bad severity, or no bank where one is needed; on a call, an image that
            `corrupt` refuses, or no image among the inputs.
    """

    _transformed_types = (Image.Image, tv_tensors.Image, _is_pure_tensor)

    def __init__(
        self, name: str, severity: int, tiles: TileBank | None = None, *, glitch_seed: int | None = 1
    ) -> None:
        super().__init__()
        self.name = check_choice("distortion", name, DISTORTIONS)
        self.severity = level_index(severity) + 1
        self.tiles = need_tiles(name, tiles) if DISTORTIONS[name].needs_tiles else None
        self.glitch_seed = glitch_seed

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw the seed of one sample."""
        if not flat_inputs:
            raise InputError("LaionC found no PIL image or tensor; for numpy arrays call `corrupt`")
        return {"seed": int(torch.randint(0, 2**63 - 1, ()))}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Distort one image, or each of a batch with draws of its own."""
        if isinstance(inpt, Image.Image):
            return self._corrupt(inpt, np.random.default_rng(params["seed"]))
        if inpt.ndim < 3 or inpt.shape[-3] not in (1, 3):
            raise InputError(f"an image tensor must be (..., 1 or 3, height, width), not {tuple(inpt.shape)}")
        batch = inpt.detach().cpu().reshape(-1, *inpt.shape[-3:]).permute(0, 2, 3, 1).numpy()
        seeds = np.random.SeedSequence(params["seed"]).spawn(len(batch))
        done = [
            self._corrupt(image, np.random.default_rng(seed))
            for image, seed in zip(batch, seeds, strict=True)
        ]
        out = torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)
        out = out.reshape(*inpt.shape[:-3], *out.shape[1:]).to(inpt.device)
        return tv_tensors.Image(out) if isinstance(inpt, tv_tensors.Image) else out

    def _corrupt(self, image: Any, rng: np.random.Generator) -> Any:
        return corrupt(image, self.name, self.severity, rng, self.tiles, glitch_seed=self.glitch_seed)
