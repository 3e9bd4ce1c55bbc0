"""The file that all parties of a session agree on: its parameters, both servers' keys and the roster.

It holds nothing secret. Clients use the parameters and the servers' keys; the roster is for the servers, and
of a client's copy it need hold no more than the client itself.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hexad.core.errors import InputError
from hexad.core.files import writable_file, write_json
from hexad.core.validation import check_choice, check_file
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.keys import Keys, PublicKeys, Roster, Servers, split_parties


def beside_keys(path: str | os.PathLike[str], config: JanusConfig) -> Path:
    """The folder beside a key file in which its owner remembers one session."""
    file = Path(path)
    return (
        file.parent / f"{file.name.removesuffix('.json')}.rounds" / f"{config.session}-{config.digest[:16]}"
    )


@dataclass(frozen=True)
class SessionFile:
    """What the file says.

    Attributes:
        config: the parameters.
        servers: the servers' public keys.
        roster: the clients' public keys.
    """

    config: JanusConfig
    servers: Servers
    roster: Roster

    @classmethod
    def of(cls, config: JanusConfig, parties: Iterable[PublicKeys]) -> "SessionFile":
        """A session of these parties, two of which are s0 and s1."""
        return cls(config, *split_parties(parties))

    def check_client(self, keys: Keys) -> None:
        """Refuse keys (`InputError`) that are not those of a client of this session."""
        self.servers.check_other(keys.public)
        if self.roster.get(keys.name) != keys.public:
            raise InputError(
                f"the keys of {keys.name} are not in the session file, or others; "
                "get the newest file, or name the keys of this session"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, over an older one of the same parameters.

        Raises:
            InputError: there is something else, or it cannot be written.
        """
        file = writable_file(path, "session file")
        if file.exists() and (not file.is_file() or SessionFile.load(file).config != self.config):
            raise InputError(f"{file} is there and is no session of these parameters; name another file")
        parties = [self.servers.s0, self.servers.s1, *self.roster.values()]
        content = {"config": asdict(self.config), "parties": [party.to_json() for party in parties]}
        write_json(file, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SessionFile":
        """Read the file.

        Raises:
            InputError: it is missing, no session file, or holds nonsense.
        """
        file = check_file(path, "session file")
        try:
            value = json.loads(file.read_text())
            config, parties = dict(value["config"]), list(value["parties"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"{file} is no session file of janus; make one by `janus session`") from None
        for name in config:
            check_choice("parameter", name, [field.name for field in fields(JanusConfig)], f"in {file}")
        if "length" not in config:
            raise InputError(f"{file} says no length; make it by `janus session`")
        return cls.of(JanusConfig(**config), [PublicKeys.from_json(party, str(file)) for party in parties])
