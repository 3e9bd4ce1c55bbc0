"""Janus (ICML 2025): sums of clients' vectors by two servers that learn neither the vectors nor the sum.

`JanusClient` masks an update and verifies the sum, `JanusServer` is one of the two servers, `Pedersen` the
commitment, `make_session` all of them in one process. `JanusStrategy`, `janus_mod` and `add_janus` bring it
into a Flower app. The message layout is our completion of the paper, and nobody has audited it.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.federated.janus.client import JanusClient, Protected, Result, model_digest
    from hexad.federated.janus.config import JanusConfig
    from hexad.federated.janus.errors import ProtocolError, VerificationError
    from hexad.federated.janus.flower import add_janus, janus_mod
    from hexad.federated.janus.flower_strategy import JanusStrategy
    from hexad.federated.janus.groups import get_group
    from hexad.federated.janus.keys import Keys, PublicKeys, Roster, Servers
    from hexad.federated.janus.pedersen import Pedersen
    from hexad.federated.janus.quantizer import Quantizer
    from hexad.federated.janus.rounds import Session, make_session
    from hexad.federated.janus.server import JanusServer

_HOME = {
    "JanusClient": "client",
    "JanusConfig": "config",
    "JanusServer": "server",
    "JanusStrategy": "flower_strategy",
    "Keys": "keys",
    "Pedersen": "pedersen",
    "Protected": "client",
    "ProtocolError": "errors",
    "PublicKeys": "keys",
    "Quantizer": "quantizer",
    "Result": "client",
    "Roster": "keys",
    "Servers": "keys",
    "Session": "rounds",
    "VerificationError": "errors",
    "add_janus": "flower",
    "get_group": "groups",
    "janus_mod": "flower",
    "make_session": "rounds",
    "model_digest": "client",
}

__all__ = [
    "JanusClient",
    "JanusConfig",
    "JanusServer",
    "JanusStrategy",
    "Keys",
    "Pedersen",
    "Protected",
    "ProtocolError",
    "PublicKeys",
    "Quantizer",
    "Result",
    "Roster",
    "Servers",
    "Session",
    "VerificationError",
    "add_janus",
    "get_group",
    "janus_mod",
    "make_session",
    "model_digest",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
