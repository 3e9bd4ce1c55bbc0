"""What `apply_folder` does to one image."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from hexad.core.errors import HexadError, InputError
from hexad.core.files import atomic_open
from hexad.core.validation import check_choice
from hexad.vision_robustness.images import Rgb, read_image
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS, corrupt, frame_for
from hexad.vision_robustness.laion_c.images import benchmark_frame, centre_crop
from hexad.vision_robustness.laion_c.levels import LEVELS, level_index
from hexad.vision_robustness.laion_c.manifest import TILES_NAME
from hexad.vision_robustness.laion_c.mosaic_tiles import TILE_SIZES
from hexad.vision_robustness.laion_c.sticker_tiles import SIZE as STICKER_SIZE
from hexad.vision_robustness.laion_c.tiles import TileBank

OUTPUT_SUFFIXES = {"jpeg": ".JPEG", "png": ".png"}


@dataclass(frozen=True)
class ApplyConfig:
    """How a folder is distorted. The defaults are the benchmark's.

    Args:
        types: names of distortions.
        levels: intensities, 1 to 5.
        size: `"benchmark"` cuts every image to 224 x 224 first; `"keep"` distorts it at its own size.
        seed: each output's seed is a hash of this, the image's path, the type and the level.
        glitch_seed: seed of every glitch, or None to draw it for each image.
        format: `"jpeg"` (quality 100, colours at full resolution) or `"png"` (lossless).
        tiles: where the tiles of mosaics and stickers come from; see `tile_sources.make_bank`.

    Raises:
        InputError: a name or level is unknown or given twice, or a seed is no integer.
    """

    types: tuple[str, ...] = tuple(DISTORTIONS)
    levels: tuple[int, ...] = LEVELS
    size: Literal["benchmark", "keep"] = "benchmark"
    seed: int = 0
    glitch_seed: int | None = 1
    format: Literal["jpeg", "png"] = "jpeg"
    tiles: str = "auto"

    def __post_init__(self) -> None:
        for name in self.types:
            check_choice("distortion", name, DISTORTIONS)
        for level in self.levels:
            level_index(level)
        for what, values in (("types", self.types), ("levels", self.levels)):
            if not values or len(set(values)) < len(values):
                raise InputError(f"{what} must name at least one, each once, not {values}")
        check_choice("size", self.size, ("benchmark", "keep"))
        check_choice("format", self.format, OUTPUT_SUFFIXES)
        for what, seed, least in (("seed", self.seed, 0), ("glitch_seed", self.glitch_seed, 1)):
            if what == "glitch_seed" and seed is None:
                continue
            if isinstance(seed, bool) or not isinstance(seed, int) or seed < least:
                raise InputError(f"{what} is {seed!r}; it must be an integer of at least {least}")

    @property
    def needs_tiles(self) -> bool:
        """Whether a bank of tiles is needed."""
        return any(DISTORTIONS[name].needs_tiles for name in self.types)

    @property
    def settings(self) -> dict[str, Any]:
        """What the bytes of every output depend on, beside the image, type and level."""
        names = ("size", "seed", "glitch_seed", "format", *(("tiles",) if self.needs_tiles else ()))
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Cell:
    """A type and level, and the output's path below the output folder."""

    name: str
    level: int
    output: str


@dataclass(frozen=True)
class Job:
    """One image and what is still to be made of it."""

    source: str
    sha256: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Done:
    """What a job made: seed and sha256 of each output; or why its image could not be read."""

    job: Job
    outputs: dict[str, dict[str, Any]]
    alpha: bool
    error: str = ""


def file_seed(seed: int, relative: str, name: str, level: int) -> int:
    """The seed of one output: 128 bits of the sha256 of all that tells it from the others."""
    key = "\0".join((str(seed), relative, name, str(level)))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")


class Worker:
    """Makes the outputs of one image at a time; it loads the tiles when it first needs them."""

    def __init__(self, config: ApplyConfig, source: Path, target: Path) -> None:
        self.config, self.source, self.target = config, source, target
        self._tiles: TileBank | None = None

    def __call__(self, job: Job, interrupted: Callable[[], bool]) -> Done:
        """Read the image, and make and write its outputs, or those that are made before an interrupt.

        Raises:
            HexadError: an output cannot be written, or the bank of tiles cannot be read.
        """
        try:
            path = self.source / job.source
            pixels, alpha = read_image(path)
        except InputError as error:
            return Done(job, {}, False, str(error).removeprefix(f"{path}: "))
        frames: dict[tuple[int, int], Rgb] = {}
        outputs = {}
        for cell in job.cells:
            if interrupted():
                break
            seed = file_seed(self.config.seed, job.source, cell.name, cell.level)
            if self.config.size == "benchmark":
                frame = frame_for(cell.name, cell.level)
                if frame not in frames:
                    frames[frame] = benchmark_frame(pixels, *frame)
                out = centre_crop(self._corrupt(frames[frame], cell, seed), 224, 224)
            else:
                out = self._corrupt(pixels, cell, seed)
            data = encode(out, self.config.format)
            self._write(self.target / cell.output, data)
            outputs[cell.output] = {"seed": f"{seed:032x}", "sha256": hashlib.sha256(data).hexdigest()}
        return Done(job, outputs, alpha)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_open(path, "wb") as file:
                file.write(data)
        except OSError as error:
            raise HexadError(f"{path} cannot be written ({error.strerror or error})") from None

    def _corrupt(self, pixels: Rgb, cell: Cell, seed: int) -> Rgb:
        bank = self._bank() if DISTORTIONS[cell.name].needs_tiles else None
        return corrupt(pixels, cell.name, cell.level, seed, bank, glitch_seed=self.config.glitch_seed)

    def _bank(self) -> TileBank:
        if self._tiles is None:
            sizes = {STICKER_SIZE, *(TILE_SIZES[level - 1] for level in self.config.levels)}
            # At its own size an image may need larger tiles, which are scaled from all that there are.
            chosen = sorted(sizes) if self.config.size == "benchmark" else None
            self._tiles = TileBank.load(self.target / TILES_NAME, chosen)
        return self._tiles


def encode(pixels: Rgb, kind: str) -> bytes:
    """The bytes of an image file: JPEG as in the benchmark (quality 100, no chroma subsampling), or PNG."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    if kind == "jpeg":
        image.save(buffer, "JPEG", quality=100, subsampling=0)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()
