"""LAION-C: six distortions that are new to web-scale vision models, and the superclass score.

`corrupt(image, name, severity)` distorts one image, `LaionC` is the same as a torchvision transform, and
`apply_folder` distorts a folder; `SuperclassMapper` scores logits. Mosaics and stickers take their tiles from
a `TileBank`. Source: Li et al., ICML 2025, arXiv 2506.16950, and the code of its authors.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.vision_robustness.laion_c.distortions import DISTORTIONS, corrupt, corrupt_in_frame
    from hexad.vision_robustness.laion_c.evaluate import evaluate_folder
    from hexad.vision_robustness.laion_c.folders import apply_folder
    from hexad.vision_robustness.laion_c.glitch import glitched
    from hexad.vision_robustness.laion_c.lines import vertical_lines
    from hexad.vision_robustness.laion_c.luminance import luminance_checkerboard
    from hexad.vision_robustness.laion_c.mosaic_tiles import mosaic
    from hexad.vision_robustness.laion_c.scoring import SuperclassMapper, error_consistency
    from hexad.vision_robustness.laion_c.shapes import geometric_shapes
    from hexad.vision_robustness.laion_c.sticker_tiles import stickers
    from hexad.vision_robustness.laion_c.superclasses import SUPERCLASSES, superclass_of
    from hexad.vision_robustness.laion_c.tiles import TileBank
    from hexad.vision_robustness.laion_c.transforms import LaionC
    from hexad.vision_robustness.laion_c.workers import ApplyConfig

_HOMES = {
    "ApplyConfig": "workers",
    "DISTORTIONS": "distortions",
    "LaionC": "transforms",
    "SUPERCLASSES": "superclasses",
    "SuperclassMapper": "scoring",
    "TileBank": "tiles",
    "apply_folder": "folders",
    "corrupt": "distortions",
    "corrupt_in_frame": "distortions",
    "error_consistency": "scoring",
    "evaluate_folder": "evaluate",
    "geometric_shapes": "shapes",
    "glitched": "glitch",
    "luminance_checkerboard": "luminance",
    "mosaic": "mosaic_tiles",
    "stickers": "sticker_tiles",
    "superclass_of": "superclasses",
    "vertical_lines": "lines",
}

__all__ = [
    "DISTORTIONS",
    "SUPERCLASSES",
    "ApplyConfig",
    "LaionC",
    "SuperclassMapper",
    "TileBank",
    "apply_folder",
    "corrupt",
    "corrupt_in_frame",
    "error_consistency",
    "evaluate_folder",
    "geometric_shapes",
    "glitched",
    "luminance_checkerboard",
    "mosaic",
    "stickers",
    "superclass_of",
    "vertical_lines",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
