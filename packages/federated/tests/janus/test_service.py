"""Two servers as processes on the loopback interface, clients as processes, and kill -9."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus import http_server as http_module
from hexad.federated.janus import service as service_module
from hexad.federated.janus.agreement import Entry, write_list
from hexad.federated.janus.client import JanusClient
from hexad.federated.janus.client_memory import ClientFolder
from hexad.federated.janus.envelopes import read_header
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.http_server import fetch, make_http
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.remote import take_part
from hexad.federated.janus.service import Service
from hexad.federated.janus.service_commands import check_servers
from hexad.federated.janus.session_file import SessionFile

NAMES = ("a", "b", "c", "d")
SessionFile_load = SessionFile.load


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def updates(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(scale=0.3, size=6) for name in NAMES}


def mean_of(values, names):
    weights = {name: NAMES.index(name) + 1 for name in NAMES}
    return sum(values[n] * weights[n] for n in names) / sum(weights[n] for n in names)


class Pair:
    """Both services in threads of this process, over HTTP."""

    def __init__(self, session, path, clients, seconds):
        self.said, self.services, self.https = [], [], []
        ports = [free_port(), free_port()]
        self.addresses = tuple(f"http://127.0.0.1:{port}" for port in ports)
        for role, server in enumerate((session.s0, session.s1)):
            peer = self.addresses[1 - role]
            self.services.append(Service(server, path, peer, clients, seconds, self.said.append))
            self.https.append(make_http(self.services[-1], "127.0.0.1", ports[role]))
        for http in self.https:
            threading.Thread(target=http.serve_forever, daemon=True).start()

    def settle(self):
        for _ in range(4):
            for service in self.services:
                service.tick()

    def end(self):
        for http in self.https:
            http.shutdown()
            http.server_close()


@pytest.fixture
def pair(make, tmp_path):
    ends = []

    def build(clients=4, seconds=60.0):
        session = make()
        parties = [session.s0.keys, session.s1.keys, *(client.keys for client in session.clients.values())]
        path = tmp_path / "session.json"
        SessionFile.of(session.s0.config, [keys.public for keys in parties]).save(path)
        made = Pair(session, path, clients, seconds)
        ends.append(made)
        return session, made

    yield build
    for made in ends:
        made.end()


def run_clients(session, pair, values, number, names=NAMES):
    """All clients at once, each in a thread, while the services tick."""
    results = {}

    def one(name):
        weight = NAMES.index(name) + 1
        try:
            results[name] = take_part(
                session.clients[name],
                pair.addresses,
                values[name],
                weight,
                number,
                timeout=30,
                poll_seconds=0.05,
            )
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pair.settle()
        time.sleep(0.02)
    return results


def test_rounds_over_http_give_all_the_mean(pair):
    session, both = pair()
    for number in (1, 2):
        values = updates(number)
        results = run_clients(session, both, values, number)
        for result in results.values():
            assert result.participants == 4
            np.testing.assert_allclose(result.mean, mean_of(values, NAMES), atol=1e-4)
    status = json.loads(fetch(both.addresses[0] + "/status")[1])
    assert status.pop("epoch") == session.s0.epoch
    assert status == {"server": "s0", "round": 2, "phase": "aggregated", "heard": list(NAMES)}


def test_a_round_ends_by_the_clock_without_those_who_do_not_come(pair):
    session, both = pair(seconds=3.0)
    values = updates()
    results = run_clients(session, both, values, 1, NAMES[:3])
    for result in results.values():
        np.testing.assert_allclose(result.mean, mean_of(values, "abc"), atol=1e-4)


def test_too_few_clients_are_told_and_the_next_round_is_well(pair):
    session, both = pair(seconds=0.3)
    results = run_clients(session, both, updates(), 1, "ab")
    assert {type(result) for result in results.values()} == {ProtocolError}
    assert "round 1 has no sum" in str(results["a"])
    assert any("fewer than the threshold" in line for line in both.said)
    for service in both.services:
        service._seconds = 60.0
    assert run_clients(session, both, updates(), 2)["d"].participants == 4


def test_a_server_that_nobody_reached_does_not_hold_the_other_up(pair, monkeypatch):
    monkeypatch.setattr(service_module, "GRACE_SECONDS", 0.3)
    session, both = pair(seconds=0.2)
    for name, client in session.clients.items():
        sent = client.protect(updates()[name], 1, 1)
        assert fetch(both.addresses[0] + "/message", sent.to_s0)[0] == 200
    end = time.monotonic() + 10
    while time.monotonic() < end and session.s0.phase != "aborted":
        both.settle()
        time.sleep(0.05)
    assert (session.s0.phase, session.s1.phase) == ("aborted", "aborted")
    assert (session.s0.round, session.s1.round) == (1, 1)


def test_a_message_whose_answer_was_lost_may_be_sent_again_and_another_may_not(pair):
    session, both = pair()
    client, values = session.clients["a"], updates()["a"]
    sent = client.protect(values, 1, 1)
    post = both.addresses[0] + "/message"
    assert [fetch(post, sent.to_s0)[0] for _ in range(2)] == [200, 200]
    session.s0.listing()
    assert fetch(post, sent.to_s0)[0] == 200
    assert fetch(post, client.protect_encoded(np.zeros(7, np.uint64), 1).to_s0)[0] == 409


def test_bad_requests_are_refused_in_a_line(pair):
    session, both = pair()
    address = both.addresses[0]
    good = session.clients["a"].protect(updates()["a"], 1, 1)
    stranger = JanusClient(Keys.generate("z"), session.s0.servers, session.s0.config)
    for path, body, code in (
        ("/message", b"nonsense", 409),
        ("/message", good.to_s1, 409),
        ("/message", good.to_s0.replace(b'"sender": "a"', b'"sender": "\\ud800"'), 409),
        ("/message", stranger.protect(updates()["a"], 1, 1).to_s0, 409),
        ("/message", session.clients["a"].protect(updates()["a"], 1, 2).to_s0, 409),
        ("/message", bytes(100_000_000)[: both.services[0].most_bytes() + 1], 413),
        ("/list", session.s0.keys.name.encode(), 409),
        ("/elsewhere", b"x", 404),
    ):
        found, reason = fetch(address + path, body)
        assert found == code, path
        assert reason.count(b"\n") == 1
    # None of them began a round.
    assert session.s0.round == 0
    for path, code in (("/reply/1/a", 202), ("/reply/x/a", 404), ("/", 404)):
        assert fetch(address + path)[0] == code
    with pytest.raises(InputError, match="cannot be bound"):
        make_http(both.services[0], "127.0.0.1", int(address.rsplit(":", 1)[1]))
    with pytest.raises(InputError, match="is no address"):
        take_part(session.clients["a"], ("127.0.0.1", "x"), updates()["a"], 1, 1)
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match=r"S_0 at .* does not answer after 0.1 s"):
        take_part(session.clients["a"], (nobody, nobody), updates()["a"], 1, 1, timeout=0.1)


def test_a_slow_client_gets_the_sums_while_the_next_round_runs(pair):
    session, both = pair()
    values = updates()
    run_clients(session, both, values, 1)
    first = session.clients["a"].protect(values["a"], 1, 2)
    assert fetch(both.addresses[0] + "/message", first.to_s0)[0] == 200
    assert session.s0.round == 2
    replies = [fetch(f"{address}/reply/1/d")[1] for address in both.addresses]
    assert session.clients["d"].verify_and_unmask(*replies, 1).participants == 4
    assert fetch(both.addresses[0] + "/reply/2/d")[0] == 202


def test_a_client_that_leaves_in_mid_round_is_summed_by_the_services(pair, tmp_path):
    session, both = pair()
    values = updates()
    messages = {name: client.protect(values[name], 1, 1) for name, client in session.clients.items()}
    for name in "dabc":
        for role in (0, 1):
            assert fetch(both.addresses[role] + "/message", messages[name][role])[0] == 200
        parties = [session.s0.keys, session.s1.keys, *(session.clients[n].keys for n in "abc")]
        SessionFile.of(session.s0.config, [keys.public for keys in parties]).save(tmp_path / "session.json")
    both.settle()
    assert session.s0.participants == session.s1.participants == ("a", "b", "c", "d")
    assert "d" not in session.s0.roster
    replies = [fetch(f"{address}/reply/1/a")[1] for address in both.addresses]
    assert session.clients["a"].verify_and_unmask(*replies, 1).participants == 4
    assert fetch(both.addresses[0] + "/reply/1/d")[0] == 409


def test_a_message_that_is_gone_from_the_disk_ends_the_round_and_not_the_service(pair, tmp_path):
    session, both = pair()
    values = updates()
    for client in session.clients.values():
        sent = client.protect(values["a"], 1, 1)
        for role in (0, 1):
            assert fetch(both.addresses[role] + "/message", sent[role])[0] == 200
    (gone,) = (tmp_path / "session-0" / "s0").rglob("c.message")
    gone.unlink()
    both.settle()
    assert session.s0.phase == "aborted"
    assert any("round 1 ends without a sum" in line for line in both.said)
    assert fetch(both.addresses[0] + "/reply/1/a")[0] == 410
    assert run_clients(session, both, values, 2)["a"].participants == 4


def test_strangers_do_not_end_a_round_and_get_no_list(pair):
    session, both = pair()
    client, values = session.clients["a"], updates()
    address = both.addresses[0]
    assert fetch(address + "/message", client.protect(values["a"], 1, 1).to_s0)[0] == 200
    due = both.services[0]._due
    config, s1 = session.s0.config, session.s1.keys
    impostor = Keys("s1", bytes(31) + b"\1", bytes(31) + b"\2")
    for keys, number in ((impostor, 1), (client.keys, 1), (impostor, 2)):
        forged = write_list(config, number, {"a": Entry("0" * 64, "")}, keys, "s0")
        code, reason = fetch(address + "/list", forged)
        assert code == 409, reason
    assert both.services[0]._due == due
    assert session.s0.phase == "open"
    session.s0.listing()
    assert fetch(address + "/list", write_list(config, 1, {}, impostor, "s0"))[0] == 409
    # The other server itself gets it, and shortens a round.
    assert fetch(address + "/list", write_list(config, 1, {}, s1, "s0"))[0] == 200


def test_junk_does_not_read_the_roster_and_a_bad_roster_file_changes_nothing(pair, tmp_path, monkeypatch):
    session, both = pair()
    reads = []
    monkeypatch.setattr(
        service_module.SessionFile, "load", lambda path: reads.append(path) or SessionFile_load(path)
    )
    client, values = session.clients["a"], updates()
    for body in (b"junk", client.protect(values["a"], 1, 1).to_s1):
        assert fetch(both.addresses[0] + "/message", body)[0] == 409
    assert not reads
    assert fetch(both.addresses[0] + "/message", client.protect(values["a"], 1, 2).to_s0)[0] == 409
    (tmp_path / "session.json").write_text("{")
    for name in "bc":
        sent = session.clients[name].protect(values[name], 1, 1)
        assert fetch(both.addresses[0] + "/message", sent.to_s0)[0] == 200
    assert len(reads) == 2  # at the first message, and when the file had changed
    assert any("the roster stays as it was" in line for line in both.said)


def raw(address, content, seconds=10):
    """What a server answers to bytes on a connection."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(content)
        found = b""
        while part := connection.recv(4096):
            found += part
        return found


def test_malformed_and_slow_requests_are_bounded(pair, monkeypatch, capfd):
    _session, both = pair()
    address = both.addresses[0]
    for length in (b"x", b"-1", b"9" * 5000, b"", b"1_0", "²".encode()):
        found = raw(address, b"POST /message HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n")
        assert found.split()[1] == b"413", length
    for path in ("/reply/" + "9" * 5000 + "/a", "/reply/%C2%B2/a", "/reply/1/a/b", "/reply/1/"):
        assert fetch(address + path)[0] == 404
    # A sender that stops in the middle, and one that says little for long.
    monkeypatch.setattr(http_module, "PATIENCE", 0.2)
    for http in both.https:
        http.RequestHandlerClass.timeout = 0.2
    start = time.monotonic()
    assert raw(address, b"POST /message HTTP/1.0\r\nContent-Length: 100\r\n\r\nabc") == b""
    assert raw(address, b"POST /mess") == b""
    assert time.monotonic() - start < 5
    # One that goes away before its answer.
    host, port = address.removeprefix("http://").split(":")
    for _ in range(3):
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        connection.close()
    assert fetch(address + "/status")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


@contextmanager
def endless(start, piece, pause):
    """An address at which an answer begins and goes on for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(connection):
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(start)
                while True:
                    connection.sendall(piece)
                    time.sleep(pause)

        def serve():
            with suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


OK = b"HTTP/1.0 200 OK\r\n"
ENDLESS = {
    "body": (OK + b"Content-Length: 1000000\r\n\r\n", b"x", 0.1),
    "body without a length": (OK + b"\r\n", b"x", 0.1),
    "headers": (OK, b"x", 0.1),
    "reason": (b"HTTP/1.0 409 No\r\n\r\n", b"x", 0.1),
    "size": (OK + b"\r\n", b"x" * 100_000, 0.0),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_server_that_never_comes_to_an_end_is_not_waited_for(session, what):
    with endless(*ENDLESS[what]) as address:
        start = time.monotonic()
        assert fetch(address + "/list", b"x", timeout=1.0) == (0, b"")
        assert time.monotonic() - start < 4
        client, update = session.clients["a"], np.zeros(6)
        with pytest.raises(InputError, match=r"S_0 at .* does not answer after 1.5 s"):
            take_part(client, (address, address), update, 1, 1, timeout=1.5)
    assert time.monotonic() - start < 10


def test_an_answer_that_is_too_long_or_cut_off_is_none(session, monkeypatch):
    monkeypatch.setattr(http_module, "PATIENCE", 0.5)  # which holds also where no timeout is given
    for what, most in (("body", 10), ("size", 10_000)):
        with endless(*ENDLESS[what]) as address:
            start = time.monotonic()
            assert fetch(address, most=most) == (0, b"")
            assert time.monotonic() - start < 4


def test_what_a_server_says_is_printed_as_a_line(session):
    start = b"HTTP/1.0 409 No\r\nContent-Length: 9\r\n\r\n\x1b[2Jno\nno"
    with (
        endless(start, b"", 0.1) as address,
        pytest.raises(ProtocolError, match=r"S_0 refuses: \?\[2Jno\?no$"),
    ):
        take_part(session.clients["a"], (address, address), np.zeros(6), 1, 1, timeout=5)


def test_connections_are_counted(pair, monkeypatch):
    monkeypatch.setattr(http_module, "CONNECTIONS", 2)
    _session, both = pair()
    host, port = both.addresses[0].removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(2)]
    time.sleep(0.2)
    assert fetch(both.addresses[0] + "/status")[0] == 0
    for connection in held:
        connection.close()
    end = time.monotonic() + 10
    while fetch(both.addresses[0] + "/status")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_client_that_was_interrupted_sends_the_same_bytes_and_gets_the_sum(pair, tmp_path):
    session, both = pair()
    values = updates()
    known = session.clients["a"]
    with (
        ClientFolder(tmp_path / "a", known.config) as folder,
        pytest.raises(InputError, match="has no sum yet"),
    ):
        take_part(known, both.addresses, values["a"], 1, 1, folder=folder, timeout=0.1)
    sent = session.s0._store.read("a.message")
    assert read_header(sent)[0].epoch == session.s0.epoch
    # Again: the servers were waiting; and once more, when all is summed.
    results = []
    for number in range(2):
        client = JanusClient(known.keys, known.servers, known.config)
        with ClientFolder(tmp_path / "a", known.config) as folder:
            folder.memory.give_to(client)
            if number == 0:
                with pytest.raises(InputError, match="has no sum yet"):
                    take_part(client, both.addresses, values["a"], 1, 1, folder=folder, timeout=0.1)
                run_clients(session, both, values, 1, "bcd")
            results.append(take_part(client, both.addresses, values["a"], 1, 1, folder=folder, timeout=10))
            folder.accept(client, results[-1], 1)
    assert [result.participants for result in results] == [4, 4]
    assert session.s0._store.read("a.message") == sent


def test_a_message_for_a_folder_that_was_lost_is_taken_by_no_other(pair):
    session, both = pair()
    client = session.clients["a"]
    run_clients(session, both, updates(), 1)
    client.epochs = (client.epochs[0], "0" * 32)
    with pytest.raises(ProtocolError, match="a knows another folder of s1 than this"):
        take_part(client, both.addresses, updates()["a"], 1, 2, timeout=5)
    assert session.s1.round == 1


def test_before_masking_the_servers_are_asked_who_they_are_and_which_round_is_due(pair):
    session, both = pair()
    check_servers(both.addresses, 1)
    check_servers(("http://127.0.0.1:9", "nowhere"), 7)  # who does not answer is asked again later
    with pytest.raises(InputError, match=r"is 's1', not s0; exchange --s0 and --s1"):
        check_servers(both.addresses[::-1], 1)
    with pytest.raises(InputError, match="s0 is at round 0 and takes round 1 next"):
        check_servers(both.addresses, 7)
    run_clients(session, both, updates(), 1)
    check_servers(both.addresses, 2)
    with pytest.raises(InputError, match="s0 is at round 1 and takes round 2 next"):
        check_servers(both.addresses, 3)


# Real processes.


class Processes:
    """The commands as processes of their own, with the output of each in a file."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, name, *words):
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", "hexad.core.cli", "federated", "janus", *map(str, words)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=dict(os.environ))
        self.running.append(process)
        return process

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()


@contextmanager
def half_open(status):
    """An address of S_1 at which it says who it is and takes no message."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(status())

        def do_POST(self):
            self.send_error(503)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


@pytest.mark.slow
def test_killed_clients_and_servers_leave_rounds_right_or_without_a_sum(tmp_path):
    """Two servers and four clients as processes on loopback; kill -9 in a round and between rounds."""
    for name in ("s0", "s1", *NAMES):
        Keys.generate(name).save(tmp_path / f"{name}.key.json")
    keys = {name: Keys.load(tmp_path / f"{name}.key.json") for name in ("s0", "s1", *NAMES)}
    from hexad.federated.janus.config import JanusConfig

    SessionFile.of(JanusConfig(length=6), [key.public for key in keys.values()]).save(
        tmp_path / "session.json"
    )
    ports = {"s0": free_port(), "s1": free_port()}
    address = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    processes = Processes(tmp_path)

    def server(name, other):
        return processes.start(
            name, "serve", "-s", "session.json", "-k", f"{name}.key.json", "--state", name,
            "--port", ports[name], "--peer", address[other], "--round-seconds", 60,
        )  # fmt: skip

    def client(name, number, values, s1=None):
        np.savez(tmp_path / f"{name}-{number}.npz", update=values[name])
        return processes.start(
            f"{name}-{number}", "take-part", f"{name}-{number}.npz", "-s", "session.json",
            "-k", f"{name}.key.json", "-r", number, "-w", NAMES.index(name) + 1,
            "--s0", address["s0"], "--s1", s1 or address["s1"],
            "-o", f"mean-{name}-{number}.npz", "--timeout", 150,
        )  # fmt: skip

    def status(name):
        code, body = fetch(address[name] + "/status")
        return json.loads(body) if code == 200 else None

    def check(number, values, names, among):
        for name in names:
            with np.load(tmp_path / f"mean-{name}-{number}.npz") as found:
                np.testing.assert_allclose(found["update"], mean_of(values, among), atol=1e-4)

    try:
        s0, s1 = server("s0", "s1"), server("s1", "s0")
        wait_for(lambda: status("s0") and status("s1"))

        # Round 1: d is killed after it reached S_0 and before it reached S_1.
        values = updates(1)
        with half_open(lambda: json.dumps(status("s1")).encode()) as nowhere:
            victim = client("d", 1, values, s1=nowhere)
            wait_for(lambda: "d" in status("s0")["heard"])
            processes.kill(victim)
        living = [client(name, 1, values) for name in "abc"]
        assert [process.wait(timeout=180) for process in living] == [0, 0, 0], processes.log("a-1")
        check(1, values, "abc", "abc")
        assert not (tmp_path / "mean-d-1.npz").exists()

        # Between the rounds S_1 is killed, and started again when clients are sending already.
        processes.kill(s1)
        values = updates(2)
        running = [client(name, 2, values) for name in NAMES]
        # d has verified no sum yet, and waits for S_1 to say who it is.
        wait_for(lambda: status("s0")["heard"] == ["a", "b", "c"] and status("s0")["round"] == 2)
        # And S_0 in the middle of the round, with messages taken.
        processes.kill(s0)
        s0, s1 = server("s0", "s1"), server("s1", "s0")
        assert [process.wait(timeout=180) for process in running] == [0] * 4, processes.log("a-2")
        check(2, values, NAMES, NAMES)

        # Both servers are killed after the round: the sums are there, and no round is summed again.
        processes.kill(s0)
        processes.kill(s1)
        s0, s1 = server("s0", "s1"), server("s1", "s0")
        wait_for(lambda: status("s0") and status("s1"))
        assert [status(name)["phase"] for name in ("s0", "s1")] == ["aggregated"] * 2
        assert [status(name)["round"] for name in ("s0", "s1")] == [2, 2]
        late = JanusClient(
            keys["a"], SessionFile.load(tmp_path / "session.json").servers, JanusConfig(length=6)
        )
        replies = [fetch(f"{address[name]}/reply/2/a")[1] for name in ("s0", "s1")]
        assert late.verify_and_unmask(*replies, 2).participants == 4
        again = late.protect(values["a"], 1, 2)
        code, reason = fetch(address["s0"] + "/message", again.to_s0)
        assert (code, b"the round 2; 3 is due" in reason) == (409, True), reason
    finally:
        for process in processes.running:
            if process.poll() is None:
                processes.kill(process)
