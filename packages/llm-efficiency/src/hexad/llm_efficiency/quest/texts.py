"""Bytes of text to train on: a folder of .txt files, or the sources of Python's own standard library."""

import functools
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_folder

HELD_OUT = 10
"""Every tenth file is kept for testing."""

Bytes = UInt8[np.ndarray, " bytes"]


class Windows(Dataset):
    """Runs of `length` + 1 tokens of a text, one after another, each overlapping the next by one.

    Args:
        tokens: the text as one run of token numbers.
        length: tokens that are predicted in a window.

    Raises:
        InputError: a text shorter than one window.
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        check_count("the length of a window", length)
        if len(tokens) <= length:
            raise InputError(f"the text has {len(tokens)} tokens; a window needs {length + 1}")
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> Int[Tensor, " length+1"]:
        start = index * self.length
        return torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))

    def spread(self, count: int) -> Int[Tensor, "count length+1"]:
        """`count` windows (or all, where there are fewer) at even distances."""
        chosen = np.linspace(0, len(self) - 1, min(count, len(self)), dtype=np.int64)
        return torch.stack([self[int(index)] for index in chosen])


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the single tokens in nats: what a model loses that knows no context."""
    counts: Float[np.ndarray, " tokens"] = np.bincount(tokens.astype(np.int64)).astype(np.float64)
    share = counts[counts > 0] / counts.sum()
    return float(abs((share * np.log(share)).sum()))  # a minus here would print -0 for a constant text


@functools.lru_cache(maxsize=1)
def standard_library() -> tuple[Bytes, Bytes]:
    """The sources of the running Python's standard library, without its tests: to train on, to test on.

    About 12 MB of code and English docstrings (PSF licence), read from where Python is installed; files in
    the order of their names, every tenth for testing. Another version of Python has another text.

    Raises:
        InputError: an installation without sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}
    files = [path for path in sorted(root.rglob("*.py")) if not left_out & set(path.relative_to(root).parts)]
    if len(files) < 2 * HELD_OUT:
        raise InputError(f"{root} holds {len(files)} Python sources; the study needs a full installation")
    return _split([path.read_bytes() for path in files])


def _split(texts: list[bytes]) -> tuple[Bytes, Bytes]:
    def joined(part: list[bytes]) -> Bytes:
        return np.frombuffer(b"\n".join(part), np.uint8)

    train = [text for place, text in enumerate(texts) if place % HELD_OUT != HELD_OUT - 1]
    return joined(train), joined(texts[HELD_OUT - 1 :: HELD_OUT])


def read_folder(folder: str | os.PathLike[str]) -> list[bytes]:
    """The .txt files of a folder and the folders in it, in the order of their names.

    Raises:
        InputError: no such folder, no such file, or one that cannot be read.
    """
    folder = check_folder(folder, "text folder")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".txt" and path.is_file())
    if not paths:
        raise InputError(f"{folder} holds no .txt file")
    texts = []
    for path in paths:
        try:
            texts.append(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})") from None
    if not any(texts):
        raise InputError(f"the .txt files of {folder} are empty")
    return texts


def split_texts(texts: list[np.ndarray], window: int) -> tuple[np.ndarray, np.ndarray]:
    """A text to train on and one to test on: of ten files or more every tenth, else the last tenth of each.

    Args:
        texts: the token numbers of each file.
        window: tokens of a window; the test must hold one.

    Raises:
        InputError: too little text.
    """
    if len(texts) >= HELD_OUT:
        train = [text for place, text in enumerate(texts) if place % HELD_OUT != HELD_OUT - 1]
        test = texts[HELD_OUT - 1 :: HELD_OUT]
    else:
        cuts = [len(text) - len(text) // HELD_OUT for text in texts]
        train = [text[:cut] for text, cut in zip(texts, cuts, strict=True)]
        test = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    parts = np.concatenate(train), np.concatenate(test)
    for part, name in zip(parts, ("train on", "test on"), strict=True):
        if len(part) <= window:
            raise InputError(
                f"only {len(part)} tokens are left to {name}, and a window takes {window + 1}; give more "
                "text, or shorter windows"
            )
    return parts
