"""The generators g_1, g_2, ... of a public label, made once and kept on disk.

Nobody knows a discrete logarithm between them, as each is hashed from the label and its number: that is
what binds a commitment. They are public, the same for everybody with that label, and lie in blocks in
`$HEXAD_CACHE/janus`, `$XDG_CACHE_HOME/hexad/janus` or `~/.cache/hexad/janus`. A false one would let whoever
put it there open commitments in two ways. So a block is read only from a file of this user's that nobody else
may write, and is checked: its hash, against damage, and some of its points, by making them again. That does
not help against somebody who has this user's rights, and with them the keys.
"""

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from hexad.core.files import cache_folder, writable_folder
from hexad.federated.janus.groups import Group
from hexad.federated.janus.private_files import write_private

BLOCK = 8192
"""Points in a file."""

SPOT_CHECKS = 8
"""Points of a block that are made again when it is read."""

LABEL = "hexad/janus/v1"

_tables: dict[tuple[str, str], UInt8[np.ndarray, "n row_size"]] = {}


def message_prefix(label: str) -> bytes:
    """What stands before the number of a generator: the label behind its length."""
    data = label.encode()
    return len(data).to_bytes(4, "big") + data + b"g"


def blinding_generator(group: Group, label: str) -> bytes:
    """The generator h of the same label."""
    data = label.encode()
    return group.hash_to_group(len(data).to_bytes(4, "big") + data + b"h")


def _block_file(group: Group, label: str, block: int) -> Path:
    key = hashlib.sha256(f"{group.library}\n{group.name}\n{label}".encode()).hexdigest()[:16]
    return cache_folder("janus") / f"{group.name}-{key}-{block:05}.points"


def _read_block(path: Path, group: Group, label: str, block: int) -> UInt8[np.ndarray, "n row_size"] | None:
    """The block in the file, or None where it is missing, damaged, of another label or in others' hands."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
                return None
            content = file.read()
    except OSError:
        return None
    digest, body = content[:32], content[32:]
    if len(body) != BLOCK * group.row_size or hashlib.sha256(body).digest() != digest:
        return None
    table = np.frombuffer(body, np.uint8).reshape(BLOCK, group.row_size)
    for place in (secrets.randbelow(BLOCK) for _ in range(SPOT_CHECKS)):
        again = group.hash_table(message_prefix(label), block * BLOCK + place, 1)
        if not np.array_equal(again[0], table[place]):
            return None
    return table


def _make_block(path: Path, group: Group, label: str, block: int) -> UInt8[np.ndarray, "n row_size"]:
    table = group.hash_table(message_prefix(label), block * BLOCK, BLOCK)
    body = table.tobytes()
    writable_folder(path.parent, "cache of generators")
    write_private(path, hashlib.sha256(body).digest() + body)
    return table


def generators(
    group: Group, label: str, count: int, tell: Callable[[float, str], None] = lambda fraction, note: None
) -> UInt8[np.ndarray, "count row_size"]:
    """The first `count` generators of the label, as a table of the group.

    The first use of a label makes them (about 80 000 a second on one core with secp256k1); each block is
    written as it is done, so an interrupted making goes on where it stopped.

    Args:
        group: the group.
        label: any public text.
        count: how many.
        tell: called with the share that is done.

    Raises:
        InputError: the cache folder cannot be written.
    """
    key = (group.name, label)
    blocks = -(-count // BLOCK)
    known = _tables.get(key)
    if known is None or len(known) < blocks * BLOCK:
        done = 0 if known is None else len(known) // BLOCK
        parts = [] if known is None else [known]
        for block in range(done, blocks):
            path = _block_file(group, label, block)
            found = _read_block(path, group, label, block)
            if found is None:
                tell(block / blocks, "generators")
                found = _make_block(path, group, label, block)
            parts.append(found)
        known = np.concatenate(parts)
        known.setflags(write=False)
        _tables[key] = known
    return known[:count]
