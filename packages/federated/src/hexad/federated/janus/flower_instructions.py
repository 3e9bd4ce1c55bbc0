"""All that S_0 tells a client about a training, as one digest, so that no client can be told anything else.

A server that sent all clients but one a learning rate of 0 would be left with a sum that is that one's
update. So each client puts a tag of this digest under its message, and updates by unlike instructions are not
summed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from hexad.federated.janus.flower_api import ArrayRecord, RecordDict

OWN = frozenset({"janus", "arrays"})
"""Records that are not in the digest: Janus's own order, and the model, in whose place comes that which the
client holds, with a tag of its own, and before all others, wherever it came. Nothing else of a message's
content differs between clients by design."""


def instructions_digest(content: RecordDict, run_config: Mapping[str, Any], names: Iterable[str] = ()) -> str:
    """The digest of every record of a message but those in `OWN`, and of the run's configuration.

    Names, order, types and values count. Not in it are the message's identifiers and times, which differ from
    client to client, and the node's own configuration, which S_0 does not send.

    Args:
        content: of the message, as it came.
        run_config: of the context; S_0's side sends it too.
        names: of the arrays of the model that the client holds, which its tag does not cover.
    """
    digest = hashlib.sha256(_text(run_config))
    digest.update(json.dumps(list(names)).encode())
    for name, record in content.items():
        if name in OWN:
            continue
        digest.update(json.dumps([name, type(record).__name__]).encode())
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                digest.update(json.dumps([key, array.dtype, list(array.shape), array.stype]).encode())
                digest.update(hashlib.sha256(array.data).digest())
        else:
            digest.update(_text(record))
    return digest.hexdigest()


def _text(values: Mapping[str, Any]) -> bytes:
    # JSON tells 1, 1.0, true and "1" apart, and writes floats exactly.
    return json.dumps(list(values.items()), default=lambda value: {"bytes": bytes(value).hex()}).encode()
