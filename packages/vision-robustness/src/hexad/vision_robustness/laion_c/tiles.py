"""The bank of small photographs from which stickers and mosaics are made."""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image
from scipy.spatial import KDTree

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.validation import check_count, check_file, check_folder
from hexad.vision_robustness.images import Rgb, find_images, read_image, rgb_array
from hexad.vision_robustness.laion_c.images import benchmark_frame

SIZES = (4, 6, 8, 16, 28)
"""Tile sizes of the benchmark: 16 for stickers, all five for mosaics."""
FEWEST = 100
MOST = 100_000
"""The benchmark's stickers come from this many photographs at most."""


class TileBank:
    """Square tiles of several sizes, each a whole photograph made small.

    `tiles(size)` gives them all, `take(which, size)` some, and `tree(size)` a KD-tree of their mean colours,
    made once. A size that the bank was not built with is scaled from the next larger one that it has.

    Args:
        sized: arrays (n, size, size, 3) of uint8 by size, the same n for all.

    Raises:
        InputError: no array, another shape or type, or fewer than 100 tiles.
    """

    def __init__(self, sized: Mapping[int, UInt8[np.ndarray, "n size size 3"]]) -> None:
        if not sized:
            raise InputError("the tile bank is empty; give it at least 100 images")
        for size, tiles in sized.items():
            if tiles.dtype != np.uint8 or tiles.ndim != 4 or tiles.shape[1:] != (size, size, 3):
                raise InputError(
                    f"tiles of size {size} must be uint8 of shape (n, {size}, {size}, 3), "
                    f"not {tiles.dtype} of shape {tiles.shape}"
                )
        counts = {len(tiles) for tiles in sized.values()}
        if len(counts) > 1:
            raise InputError(f"a tile bank needs equally many tiles of every size, not {sorted(counts)}")
        self.count = counts.pop()
        if self.count < FEWEST:
            raise InputError(
                f"the tile bank holds {self.count} tiles; mosaics and stickers need at least {FEWEST}"
            )
        self._tiles = {int(size): tiles for size, tiles in sized.items()}
        self._trees: dict[int, KDTree] = {}

    def __len__(self) -> int:
        return self.count

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the bank was built with."""
        return tuple(sorted(self._tiles))

    def tiles(self, size: int) -> UInt8[np.ndarray, "n size size 3"]:
        """All tiles at `size` x `size` pixels."""
        return self._tiles[size] if size in self._tiles else self.take(np.arange(self.count), size)

    def take(self, which: Int[np.ndarray, " k"], size: int) -> UInt8[np.ndarray, "k size size 3"]:
        """The tiles of the given numbers at `size` x `size` pixels."""
        source = self._tiles[self._source(size)]
        if source.shape[1] == size:
            return source[which]
        # Of a large image's tiles only those that are used are scaled: all of them may not fit in memory.
        used, places = np.unique(which, return_inverse=True)
        return np.stack([_shrink(source[number], size) for number in used])[places]

    def tree(self, size: int) -> KDTree:
        """A KD-tree of the mean colours (n, 3), in grey levels of 255, of the tiles at `size`.

        Scaling keeps the mean, so for a size that is not built it is the tree of the size scaled from.
        """
        source = self._source(size)
        if source not in self._trees:
            self._trees[source] = KDTree(self._tiles[source].mean((1, 2)))
        return self._trees[source]

    def _source(self, size: int) -> int:
        """The size itself if built, else the next larger one, else the largest."""
        return min((built for built in self._tiles if built >= size), default=max(self._tiles))

    def digest(self) -> str:
        """The sha256, in hexadecimal, of the tiles it was built with."""
        sha = hashlib.sha256()
        for size in self.sizes:
            sha.update(f"{size}x{self.count};".encode())
            sha.update(np.ascontiguousarray(self._tiles[size]).data)
        return sha.hexdigest()

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        sizes: Sequence[int] = SIZES,
        *,
        limit: int = MOST,
        progress: Callable[[float], Any] = lambda fraction: None,
    ) -> "TileBank":
        """Make a tile of every image below a folder, in the order of their paths.

        As in the benchmark, each is cut by Resize(256) and CenterCrop(224), then scaled (bilinear) to each
        size. Files that cannot be read are left out with a warning.

        Raises:
            InputError: no folder, or fewer than 100 images in it that can be read.
        """
        missed: dict[Path, str] = {}
        paths = find_images(check_folder(folder, "tile folder"), missed)[:limit]

        def load(path: Path) -> Rgb | InputError:
            try:
                return benchmark_frame(read_image(path)[0])
            except InputError as error:
                return error

        def images() -> Iterable[Rgb]:
            unread = [InputError(f"{path}: {reason}") for path, reason in sorted(missed.items())]
            # Pillow decodes and scales outside the interpreter lock, so threads serve. In chunks, since the
            # pool's map would hold all photographs at once.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for first in range(0, len(paths), 256):
                    for result in pool.map(load, paths[first : first + 256]):
                        if isinstance(result, InputError):
                            unread.append(result)
                        else:
                            yield result
                    progress(min(first + 256, len(paths)) / len(paths))
            if unread:
                warnings.warn(f"{len(unread)} tile sources left out, the first: {unread[0]}", stacklevel=2)

        return cls(_scale_all(images(), sizes))

    @classmethod
    def from_arrays(cls, images: Iterable[np.ndarray], sizes: Sequence[int] = SIZES) -> "TileBank":
        """Make a tile of every array (height, width[, 3]): its centre square, scaled (bilinear) to each size.

        An array that has the size already is kept bit for bit.
        """
        return cls(_scale_all((_square(image) for image in images), sizes))

    @classmethod
    def from_crops(
        cls, images: Sequence[np.ndarray], count: int, seed: int = 0, sizes: Sequence[int] = SIZES
    ) -> "TileBank":
        """Cut `count` random squares out of a few photographs, for want of a hundred or more.

        The photograph is drawn uniformly, then a side uniform from 32 pixels to its short side, then a place.
        The benchmark makes a tile of a whole photograph; crops of few have fewer colours and say less.
        """
        check_count("count", count)
        if not len(images):
            raise InputError("there are no photographs to cut tiles from")
        pictures = [Image.fromarray(rgb_array(image)) for image in images]
        rng = np.random.default_rng(seed)

        def crops() -> Iterable[Rgb]:
            for index in rng.integers(0, len(pictures), count):
                picture = pictures[index]
                side = int(rng.integers(32, min(picture.size) + 1))
                left = int(rng.integers(0, picture.width - side + 1))
                top = int(rng.integers(0, picture.height - side + 1))
                crop = picture.crop((left, top, left + side, top + side))
                # One step down for all sizes: scaling five times from a large crop costs five times as much.
                yield np.asarray(crop.resize((56, 56), Image.Resampling.BILINEAR))

        return cls(_scale_all(crops(), sizes))

    def save(self, path: str | Path) -> None:
        """Write the tiles it was built with to an `.npz` file."""
        target = Path(path)
        if target.suffix != ".npz":
            raise InputError(f"a tile bank is saved as .npz, not {target.name!r}")
        arrays: dict[str, Any] = {f"tiles_{size}": self._tiles[size] for size in self.sizes}
        with atomic_path(target) as temporary:
            np.savez(temporary, **arrays)

    @classmethod
    def load(cls, path: str | Path, sizes: Sequence[int] | None = None) -> "TileBank":
        """Read what `save` wrote: all sizes, or only some to save memory.

        Raises:
            InputError: the file is missing, or is no tile bank.
        """
        file = check_file(path, "tile bank")
        try:
            with np.load(file, allow_pickle=False) as archive:
                names = [f"tiles_{size}" for size in sizes] if sizes else archive.files
                sized = {int(name.removeprefix("tiles_")): archive[name] for name in names}
        except Exception as error:
            # numpy raises whatever the damage leads to: BadZipFile, ValueError, EOFError, KeyError ... Its
            # words advise to load the file all the same.
            raise InputError(f"{file} is damaged, or no bank that `laion-c tiles` saved") from error
        return cls(sized)


def need_tiles(name: str, tiles: TileBank | None) -> TileBank:
    """Return the bank, or say how to make one."""
    if not isinstance(tiles, TileBank):
        raise InputError(
            f"{name} needs tiles=TileBank.from_folder(...) of at least {FEWEST} photographs, "
            f"not {type(tiles).__name__}"
        )
    return tiles


def _square(image: np.ndarray) -> Rgb:
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8:
        pixels = image  # tiles may be smaller than the images that rgb_array lets pass
    else:
        pixels = rgb_array(image)
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]


def _shrink(tile: Rgb, size: int) -> Rgb:
    if tile.shape[0] == size:
        return tile
    return np.asarray(Image.fromarray(tile).resize((size, size), Image.Resampling.BILINEAR))


def _scale_all(images: Iterable[Rgb], sizes: Sequence[int]) -> dict[int, UInt8[np.ndarray, "n size size 3"]]:
    if not sizes or any(size < 1 for size in sizes):
        raise InputError(f"tile sizes must be positive integers, not {tuple(sizes)}")
    scaled: dict[int, list[Rgb]] = {size: [] for size in sizes}
    for image in images:
        for size, tiles in scaled.items():
            tiles.append(_shrink(image, size))
    if not next(iter(scaled.values())):
        raise InputError("the tile bank is empty; give it at least 100 images")
    return {size: np.stack(tiles) for size, tiles in scaled.items()}
