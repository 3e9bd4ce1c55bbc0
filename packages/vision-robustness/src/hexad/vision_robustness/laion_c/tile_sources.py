"""Where the tiles of a folder's mosaics and stickers come from."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hexad.core.errors import InputError, MissingExtraError
from hexad.vision_robustness.images import read_image
from hexad.vision_robustness.laion_c.packaged import load_photographs
from hexad.vision_robustness.laion_c.tiles import FEWEST, TileBank

CROPS = 2000
"""Tiles that are cut from a few photographs."""
MOST_OF_SOURCE = 10_000
WORDS = ("auto", "source", "packaged")


def make_bank(
    tiles: str,
    source: Path,
    images: Sequence[Path],
    progress: Callable[[float], Any] = lambda fraction: None,
) -> tuple[TileBank, dict[str, Any]]:
    """Make the bank for distorting the images of a folder.

    Args:
        tiles: a folder of at least 100 photographs, a saved bank (`.npz`), or a word: `source` for the images
            themselves, whole where there are 100 and else as random crops; `packaged` for random crops of the
            photographs that the `study` extra brings; `auto` for whole source images where there are 100,
            else `packaged` where it is installed, else `source`.
        source: the folder of images.
        images: its images.
        progress: told the fraction done.

    Returns:
        the bank, and its description for the manifest.

    Raises:
        InputError: the folder or file is missing, or gives fewer than 100 tiles.
        MissingExtraError: `packaged` without the extra.
    """
    if tiles not in WORDS:
        path = Path(tiles)
        if path.suffix == ".npz":
            return _described(TileBank.load(path), f"saved bank {path}")
        return _described(TileBank.from_folder(path, progress=progress), f"whole images of {path}")
    if tiles in ("auto", "source") and len(images) >= FEWEST:
        bank = _whole_source(source, progress)
        if bank is not None:
            return _described(bank, "whole source images")
    if tiles in ("auto", "packaged"):
        try:
            photographs = list(load_photographs().values())
            return _described(TileBank.from_crops(photographs, CROPS), "crops of packaged photographs")
        except MissingExtraError:
            if tiles == "packaged":
                raise
    return _described(_crops_of(source, images), "crops of source images")


def _whole_source(source: Path, progress: Callable[[float], Any]) -> TileBank | None:
    """A tile of every image, or None where so many are damaged that fewer than 100 are left."""
    try:
        with warnings.catch_warnings():
            # Images that cannot be read are named when their turn to be distorted comes.
            warnings.simplefilter("ignore", UserWarning)
            return TileBank.from_folder(source, limit=MOST_OF_SOURCE, progress=progress)
    except InputError:
        return None


def _crops_of(source: Path, images: Sequence[Path]) -> TileBank:
    readable = []
    for path in images[:FEWEST]:
        try:
            readable.append(read_image(path)[0])
        except InputError:
            continue
    if not readable:
        raise InputError(
            f"none of the images in {source} can be read, so there are no tiles; pass --tiles DIR"
        )
    return TileBank.from_crops(readable, CROPS)


def _described(bank: TileBank, kind: str) -> tuple[TileBank, dict[str, Any]]:
    return bank, {"from": kind, "count": len(bank), "sha256": bank.digest()}
