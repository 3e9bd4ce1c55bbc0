"""S_1 as a Flower node answers S_0's requests; and how both servers vouch for a client."""

import json
from collections.abc import Sequence
from typing import Any

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.envelopes import Header, check_header, check_signature, read_header, sign
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.keys import Keys, PublicKeys, Roster, Servers
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile


def vouch(config: JanusConfig, round_number: int, keys: Keys, roster: Roster, name: str) -> bytes:
    """A server's signed word that a client with these keys is in its roster.

    Raises:
        ProtocolError: check `"roster"`: it is not.
    """
    client = roster.member(name)
    header = Header("vouch", config.session, config.digest, round_number, keys.name, name)
    return sign(header, json.dumps(client.to_json()).encode(), keys)


def vouched_keys(
    vouchers: Sequence[bytes], servers: Servers, config: JanusConfig, round_number: int
) -> PublicKeys:
    """The client for whom both servers vouch.

    Raises:
        ProtocolError: one does not, or they vouch for two.
    """
    if len(vouchers) != 2:
        raise ProtocolError("signature", f"{len(vouchers)} servers vouch for a client; both must")
    found = []
    for role, message in enumerate(vouchers):
        header, line, signed = read_header(message)
        check_header(header, config, kind="vouch", round=round_number, sender=servers[role].name)
        payload = check_signature(line, signed, servers[role])
        try:
            found.append(PublicKeys.from_json(json.loads(payload), f"the word of {header.sender}"))
        except (InputError, ValueError):
            raise ProtocolError(
                "envelope", f"the word of {header.sender} is malformed; it is refused"
            ) from None
    if found[0] != found[1]:
        raise ProtocolError("roster", f"the servers vouch for unlike keys of {found[0].name}")
    return found[0]


def answer_s1(keys: Keys, session: SessionFile, folder: str, order: dict[str, Any]) -> dict[str, Any]:
    """Do what S_0 asks of S_1; its folder remembers what was done, whatever process it was in.

    Args:
        keys: of S_1.
        session: whose roster is read anew from its file each time, so that clients may join and leave.
        folder: S_1's state.
        order: "stage" is "sum" (with "round", "messages", "list"), "reply" (with "names") or "vouch" (with
            "round", "name").

    Returns:
        what stands in the reply: "list" and "refused", "replies", or "voucher".

    Raises:
        ProtocolError: S_1 refuses.
    """
    stage = order["stage"]
    if stage == "vouch":
        word = vouch(session.config, int(order["round"]), keys, session.roster, order["name"])
        return {"voucher": word}
    with JanusServer(1, keys, session.servers, session.roster, session.config, folder) as server:
        if stage == "sum":
            return _sum(server, order)
        if stage == "reply":
            return {"replies": [server.reply(name) for name in order["names"]]}
    raise InputError(f"S_1 knows no stage {stage!r}; it has sum, reply and vouch")


def _sum(server: JanusServer, order: dict[str, Any]) -> dict[str, Any]:
    server.begin(int(order["round"]))
    refused = []
    for message in order["messages"]:
        try:
            server.submit(message)
        except HexadError as error:
            refused.append(str(error))
    own = server.listing()
    server.close(order["list"])
    server.aggregate()
    return {"list": own, "refused": refused}
