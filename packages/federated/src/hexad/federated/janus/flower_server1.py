"""S_1 as a Flower node answers S_0's requests; and how both servers vouch for a client."""

import json
from pathlib import Path
from typing import Any

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.config import JanusConfig, check_round
from hexad.federated.janus.envelopes import Header, check_header, check_signature, read_header, sign
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.keys import Keys, PublicKeys, Servers
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile


def vouch(server: JanusServer, round_number: int, name: str) -> bytes:
    """A server's signed word that a client with these keys is in its roster, and how far its sums are.

    Raises:
        ProtocolError: check `"roster"`: it is not.
    """
    client, config = server.roster.member(name), server.config
    header = Header("vouch", config.session, config.digest, round_number, server.keys.name, name)
    word = {"client": client.to_json(), "summed": server.summed}
    return sign(header, json.dumps(word).encode(), server.keys)


def vouched(
    vouchers: Any, servers: Servers, config: JanusConfig, round_number: int
) -> tuple[PublicKeys, int]:
    """The client for whom both servers vouch, and the last round that both say they summed.

    Raises:
        ProtocolError: one does not, or they vouch for two.
    """
    if not isinstance(vouchers, list) or len(vouchers) != 2:
        raise ProtocolError("signature", "a client needs the word of both servers")
    found = []
    for role, message in enumerate(vouchers):
        header, line, signed = read_header(message)
        check_header(header, config, kind="vouch", round=round_number, sender=servers[role].name)
        payload = check_signature(line, signed, servers[role])
        try:
            word = json.loads(payload)
            client = PublicKeys.from_json(word["client"], f"the word of {header.sender}")
            found.append((client, int(word["summed"])))
        except (InputError, ValueError, TypeError, KeyError, RecursionError):
            raise ProtocolError(
                "envelope", f"the word of {header.sender} is malformed; it is refused"
            ) from None
    (first, done), (second, also) = found
    if first != second:
        raise ProtocolError("roster", f"the servers vouch for unlike keys of {first.name}")
    return first, min(done, also)


def answer_s1(
    keys: Keys, session: SessionFile, folder: str, mark: Path, order: dict[str, Any]
) -> dict[str, Any]:
    """Do what S_0 asks of S_1; its folder remembers what was done, whatever process it was in.

    Args:
        keys: of S_1.
        session: whose roster is read anew from its file each time, so that clients may join and leave.
        folder: S_1's state.
        mark: of the folder; see `JanusServer`.
        order: "stage" is "sum" (with "round", "messages", "list"), "reply" (with "names"), "vouch" (with
            "round", "name") or "epoch".

    Returns:
        what stands in the reply: "list" and "refused", "replies" (empty for who is no client any more),
        "voucher" or "epoch".

    Raises:
        InputError: the order is none.
        ProtocolError: S_1 refuses.
    """
    stage, wanted = order.get("stage"), STAGES.get(str(order.get("stage")))
    if wanted is None or not all(isinstance(order.get(name), kind) for name, kind in wanted.items()):
        raise InputError(f"S_1 knows no stage {stage!r} of this kind; it has {', '.join(STAGES)}")
    with JanusServer(1, keys, session.servers, session.roster, session.config, folder, mark) as server:
        if stage == "sum":
            return _sum(server, order)
        if stage == "reply":
            return {"replies": [_reply(server, name) for name in order["names"]]}
        if stage == "vouch":
            return {"voucher": vouch(server, check_round(order["round"]), str(order["name"]))}
        return {"epoch": server.epoch}


STAGES: dict[str, dict[str, type]] = {
    "sum": {"round": int, "messages": list, "list": bytes},
    "reply": {"names": list},
    "vouch": {"round": int, "name": str},
    "epoch": {},
}


def _reply(server: JanusServer, name: str) -> bytes:
    try:
        return server.reply(name)
    except ProtocolError as error:
        if error.check != "roster":
            raise
        return b""


def _sum(server: JanusServer, order: dict[str, Any]) -> dict[str, Any]:
    server.begin(order["round"])
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
