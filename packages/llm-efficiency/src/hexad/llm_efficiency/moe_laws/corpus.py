"""Real text to train small language models on: the sources of Python's standard library, as bytes.

Licence: PSF-2.0; read where the interpreter has them, never copied. Tests, idle tests, code tables and
`pydoc_data` are left out, as they repeat themselves. Every twentieth file, by the hash of its name, is held
out, so that what is evaluated was never trained on.
"""

import functools
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from hexad.core.errors import InputError

HELD_OUT = 20
LEAST_BYTES = 4_000_000
_LEFT_OUT = {"test", "tests", "idle_test", "encodings", "pydoc_data", "lib2to3", "site-packages"}


@dataclass(frozen=True)
class Corpus:
    """Bytes of two disjoint sets of files.

    Attributes:
        train: of the files to train on.
        held_out: of the files to evaluate on.
    """

    train: UInt8[np.ndarray, " train"]
    held_out: UInt8[np.ndarray, " held"]


@functools.lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """The sources of the standard library that runs this, some ten million bytes.

    Raises:
        InputError: the interpreter came without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _LEFT_OUT.isdisjoint(name.parts):
            digest = hashlib.sha256(name.as_posix().encode()).digest()
            held_out = int.from_bytes(digest[:4], "big") % HELD_OUT == 0
            parts[held_out].append(path.read_bytes())
    train, held_out = (np.frombuffer(b"".join(files), np.uint8) for files in parts)
    if len(train) < LEAST_BYTES:
        raise InputError(
            f"{root} holds {len(train):,} bytes of Python sources, too few to train on; "
            "use an interpreter that came with its standard library as files"
        )
    return Corpus(train, held_out)
