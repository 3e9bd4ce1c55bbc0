"""What stands in clear for a client's model and for the instructions by which it trained.

Clients of unlike tags are not summed. A tag is keyed by what clients alone share: the secret of the last sum
that they verified (`Result.secret`), which is made of the sum of the clients' randomness. Neither server
knows that sum: S_0 has it under a pad, S_1 has the pad alone. So nobody else can try models against a tag.
Before the first sum there is no secret yet, and none is needed: the first model is public.
"""

import hashlib
import hmac
import json

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.groups import scalar_to_bytes

SECRET_SIZE = 32


def shared_secret(config: JanusConfig, round_number: int, randomness: int) -> bytes:
    """What all clients that verify a round's sum share, of the sum R of their commitments' randomness."""
    info = json.dumps(["hexad-janus-v2 clients", config.session, config.digest, round_number]).encode()
    return HKDF(SHA256(), SECRET_SIZE, salt=None, info=info).derive(scalar_to_bytes(randomness))


def _tag(secret: bytes, config: JanusConfig, *parts: str | int) -> str:
    content = json.dumps([config.session, config.digest, *parts]).encode()
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def model_tag(secret: bytes, config: JanusConfig, digest: str) -> str:
    """The tag of a model.

    Args:
        secret: of the last verified sum; empty before the first.
        config: of the session.
        digest: `client.model_digest` of the model.
    """
    return _tag(secret, config, "model", digest)


def training_tag(secret: bytes, config: JanusConfig, round_number: int, digest: str) -> str:
    """The tag of a round's instructions for training; `digest` stands for all that a client was told."""
    return _tag(secret, config, "training", round_number, digest)
