"""Files of the command line: updates and means as .npz, messages as files that carry their own header."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float, Shaped

from hexad.core.errors import InputError
from hexad.core.files import atomic_open
from hexad.core.validation import check_file, check_path
from hexad.federated.janus.client import model_digest
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.envelopes import MOST_HEADER, Header, read_header
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.models import flatten
from hexad.federated.janus.private_files import write_private

SUFFIX = ".janus"
Named = dict[str, Shaped[np.ndarray, "..."]]


def read_arrays(path: Path, what: str = "update") -> Named:
    """The arrays of an .npz file by name, sorted: in that order all parties put them behind each other.

    Raises:
        InputError: it is missing or something else, or holds what is no array of numbers.
    """
    file = check_file(path, what)
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in sorted(content.files)}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError):
        raise InputError(f"{what} {file} is no .npz file of plain arrays; write it by numpy.savez") from None
    if not arrays:
        raise InputError(f"{what} {file} holds no arrays")
    return arrays


def layout_of(arrays: Named) -> str:
    """A digest of the names and shapes of an update's arrays; "" of a single one, whatever its name."""
    if len(arrays) == 1:
        return ""
    text = json.dumps([[name, array.shape] for name, array in sorted(arrays.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_layout(arrays: Named, config: JanusConfig, path: Path) -> None:
    """Refuse (`InputError`) arrays that are not those of the session's updates, by names or shapes."""
    if layout_of(arrays) == config.layout:
        return
    if not config.layout:
        raise InputError(
            f"{path} holds {len(arrays)} arrays and the session is for one; make the session by --like"
        )
    raise InputError(
        f"the arrays of {path} have other names or shapes than the update that the session was made like"
    )


def read_update(path: Path, config: JanusConfig | None = None) -> Float[np.ndarray, " length"]:
    """The numbers of an update, one array behind the other.

    Args:
        path: of the .npz file.
        config: of the session whose updates it must be like.

    Raises:
        InputError: see `read_arrays` and `check_layout`; or an array holds no floats.
    """
    arrays = read_arrays(path)
    if config is not None:
        check_layout(arrays, config, path)
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise InputError(f"array {name!r} of {path} holds {array.dtype}; an update holds floats alone")
    return flatten(list(arrays.values()))


def digest_of(path: Path | None) -> str:
    """The digest of the model in a file, "" without one."""
    return "" if path is None else model_digest(list(read_arrays(path, "model").values()))


def write_mean(path: Path, mean: Float[np.ndarray, " length"], like: Named | None) -> None:
    """Write a mean, cut into arrays like those of an update.

    Raises:
        InputError: `like` has another number of numbers.
    """
    named: Named = {"mean": mean}
    if like is not None:
        size = sum(array.size for array in like.values())
        if size != len(mean):
            raise InputError(f"the arrays to write like hold {size} numbers, the mean {len(mean)}")
        ends = np.cumsum([array.size for array in like.values()])[:-1]
        parts = np.split(mean, ends)
        named = {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}
    content = io.BytesIO()
    np.savez(content, **named)  # ty: ignore[invalid-argument-type]
    write_private(path, content.getvalue())  # the servers are not to see it


def message_files(paths: Iterable[Path], kind: str) -> list[Path]:
    """Files that hold messages of that kind, among files and all *.janus of folders.

    Raises:
        InputError: a path is missing; a file that was named itself holds something else.
    """
    found = []
    for path in paths:
        if check_path(path, "message").is_dir():
            found += [file for file in sorted(path.rglob(f"*{SUFFIX}")) if _kind(file) == kind]
            continue
        file = check_file(path, "message")
        if _kind(file) != kind:
            raise InputError(
                f"{file} holds no {kind!r} message of janus, but {_kind(file) or 'something else'}"
            )
        found.append(file)
    return found


def find_replies(paths: Iterable[Path], own: str, round_number: int) -> tuple[bytes, bytes]:
    """The replies of S_0 and S_1 to a client in a round, among files and all *.janus of folders.

    Raises:
        InputError: a path is missing; one of them is not there, or there are several.
    """
    files: list[Path] = []
    for path in paths:
        folder = check_path(path, "reply").is_dir()
        files += sorted(path.rglob(f"*{SUFFIX}")) if folder else [check_file(path, "reply")]
    found = []
    for server in ("s0", "s1"):
        wanted = ("sum", server, own, round_number)
        mine = [path for path in files if (header := _header(path)) and _address(header) == wanted]
        if len(mine) != 1:
            raise InputError(
                f"{len(mine)} of the {len(files)} files given are the reply of {server} to {own} in round "
                f"{round_number}; give that one"
            )
        found.append(mine[0].read_bytes())
    return found[0], found[1]


def _address(header: Header) -> tuple[str, str, str, int]:
    return header.kind, header.sender, header.recipient, header.round


def _header(path: Path) -> Header | None:
    with path.open("rb") as file:
        start = file.read(MOST_HEADER)
    try:
        return read_header(start)[0]
    except ProtocolError:
        return None


def _kind(path: Path) -> str:
    header = _header(path)
    return header.kind if header else ""


def file_name(header: Header) -> str:
    """Such as "bank-a-round-3-to-s0.janus"."""
    return f"{header.sender}-round-{header.round}-to-{header.recipient}{SUFFIX}"


def write_message(folder: Path, message: bytes) -> Path:
    """Write a message to a folder, under a name that its header gives."""
    path = folder / file_name(read_header(message)[0])
    with atomic_open(path, "wb") as file:
        file.write(message)
    return path
