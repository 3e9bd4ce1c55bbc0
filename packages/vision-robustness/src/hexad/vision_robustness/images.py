"""Images in: what is accepted, read upright as RGB, and found below a folder."""

import os
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from hexad.core.errors import InputError

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"))
SMALLEST = 32
"""Shortest side, in pixels, of an image that is accepted."""
DARK = 2**12
"""Below this a 16-bit image is likely to hold 12 bits or fewer."""

Rgb = UInt8[np.ndarray, "height width 3"]


def rgb_array(image: Image.Image | np.ndarray) -> Rgb:
    """The pixels of any accepted image as RGB, uint8, (height, width, 3).

    Args:
        image: a PIL image of any mode, or an array (height, width[, 1, 3 or 4]), uint8, or float in [0, 1].
            Greyscale is repeated in the three channels; alpha is composited on white with a warning.

    Raises:
        InputError: another shape or type, floats outside [0, 1], or a side under 32 pixels.
    """
    pixels, had_alpha = _rgb(image)
    if had_alpha:
        warnings.warn("alpha was composited on white", stacklevel=3)
    return pixels


def _rgb(image: Image.Image | np.ndarray) -> tuple[Rgb, bool]:
    """The pixels, and whether alpha was composited on white."""
    if isinstance(image, Image.Image):
        pixels, had_alpha = _from_pil(image)
    elif isinstance(image, np.ndarray):
        pixels, had_alpha = _from_array(image)
    else:
        raise InputError(f"an image must be a PIL image or a numpy array, not {type(image).__name__}")
    height, width = pixels.shape[:2]
    if min(height, width) < SMALLEST:
        raise InputError(f"the image is {width} x {height} pixels; each side must have at least {SMALLEST}")
    return pixels, had_alpha


def _from_array(image: np.ndarray) -> tuple[Rgb, bool]:
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise InputError(
            f"an image array must be (height, width) or (height, width, 1, 3 or 4), not {image.shape}"
        )
    if np.issubdtype(image.dtype, np.floating):
        if not (np.isfinite(image).all() and image.min(initial=0) >= 0 and image.max(initial=0) <= 1):
            raise InputError("a float image must lie in [0, 1]; divide by 255, or pass uint8")
        image = np.rint(image * 255).astype(np.uint8)
    if image.dtype != np.uint8:
        raise InputError(f"an image array must be uint8, or float in [0, 1], not {image.dtype}")
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        return np.repeat(image, 3, axis=2), False
    if image.shape[2] == 4:
        return _from_pil(Image.fromarray(image))
    return np.ascontiguousarray(image), False


def _from_pil(image: Image.Image) -> tuple[Rgb, bool]:
    if image.mode in ("I", "F"):
        raise InputError(f"a PIL image of mode {image.mode!r} has no fixed range; convert it to 8 bits")
    if image.mode.startswith("I;16"):
        # convert("L") would clip at 255 and leave a 16-bit photograph nearly white.
        grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2), False
    had_alpha = image.has_transparency_data
    if had_alpha:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(image.convert("RGB")), had_alpha


def read_image(path: str | Path) -> tuple[Rgb, bool]:
    """Read a file: its first frame, upright by its EXIF orientation, as RGB.

    Returns:
        the pixels, and whether alpha was composited on white.

    Raises:
        InputError: it is no image, it is cut short, or a side has under 32 pixels; the message names it.
    """
    try:
        with Image.open(path) as file:
            file.load()
            if file.mode.startswith("I;16") and (most := int(np.asarray(file).max())) < DARK:
                warnings.warn(
                    f"{path}: its 16 bits reach {most} of 65535, so it is nearly black; scale it to 8 bits",
                    stacklevel=2,
                )
            return _rgb(ImageOps.exif_transpose(file))
    except UnidentifiedImageError:
        raise InputError(f"{path}: no image that Pillow can read") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise InputError(f"{path}: it has more than {most:,} pixels; make a smaller copy") from None
    except (OSError, SyntaxError, ValueError) as error:
        # Pillow's decoders raise SyntaxError and ValueError on damaged files.
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: {reason}") from None


def find_images(folder: str | Path, unread: dict[Path, str] | None = None) -> list[Path]:
    """Paths of the image files below a folder, by suffix, sorted, hidden files and folders left out.

    Links are followed, but for a link to a folder that it lies in.

    Args:
        folder: where to look.
        unread: is given the reason of each broken link and each folder that cannot be read.

    Raises:
        InputError: there is none, or, without `unread`, something cannot be read.
    """
    root = Path(folder)
    found, missed = _scan(root)
    reasons = [f"{path}: {reason}" for path, reason in sorted(missed.items())]
    if not found:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        found_out = f" ({reasons[0]})" if reasons else ""
        raise InputError(f"no images in {root}; looked for {kinds}, in subfolders too{found_out}")
    if unread is None and reasons:
        raise InputError(reasons[0])
    if unread is not None:
        unread.update(missed)
    return sorted(found)


def _scan(root: Path) -> tuple[list[Path], dict[Path, str]]:
    """Images below a folder, and the reason of each broken link and folder that cannot be read."""
    found: list[Path] = []
    missed: dict[Path, str] = {}
    pending: list[tuple[Path, tuple[str, ...]]] = [(root, ())]
    while pending:
        place, above = pending.pop()
        real = os.path.realpath(place)
        if real in above:
            continue
        try:
            with os.scandir(place) as listing:
                entries = [entry for entry in listing if not entry.name.startswith(".")]
        except OSError as error:
            missed[place] = error.strerror or str(error)
            continue
        for entry in entries:
            path = place / entry.name
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                shown = os.fsencode(entry.name).decode(errors="backslashreplace")
                missed[place / shown] = "its name is not UTF-8; rename it"
                continue
            try:
                if entry.is_dir():
                    pending.append((path, (*above, real)))
                elif entry.is_file():
                    if path.suffix.lower() in SUFFIXES:
                        found.append(path)
                elif entry.is_symlink():
                    missed[path] = "broken link"
            except OSError as error:
                missed[path] = error.strerror or str(error)
    return found, missed
