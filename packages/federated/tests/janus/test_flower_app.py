"""Janus in Flower, in one process: the strategy, the mod, S_1's node, joining clients, crashes and cheats."""

import dataclasses
import shutil
import time

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from hexad.core.errors import InputError
from hexad.federated.flower import InProcessGrid
from hexad.federated.janus import JanusConfig, JanusStrategy, Keys, add_janus, flower_members, janus_mod
from hexad.federated.janus.client import model_digest
from hexad.federated.janus.envelopes import Header, read_header, seal
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.flower import LEAP
from hexad.federated.janus.flower_instructions import instructions_digest
from hexad.federated.janus.flower_node import HELD, MODEL, Held, Node, pack, unpack
from hexad.federated.janus.flower_server1 import vouch, vouched
from hexad.federated.janus.models import add_to, difference, flat_length
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile
from hexad.federated.janus.tags import model_tag

CLIENTS = ("a", "b", "c", "d")
START = [np.zeros((2, 3), np.float32), np.zeros(3)]


def make_app(*mods):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        """Move the model by what is the node's own."""
        arrays = message.content["arrays"]
        context.state.setdefault("seen", ConfigRecord({"rounds": 0}))["rounds"] += 1
        step = context.node_config["step"]
        new = {
            name: Array(array.numpy() + np.asarray(step, array.numpy().dtype))
            for name, array in arrays.items()
        }
        metrics = MetricRecord({"num-examples": context.node_config["examples"], "secret-loss": step})
        return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        first = message.content["arrays"].to_numpy_ndarrays()[0]
        metrics = MetricRecord({"num-examples": 1, "mean": float(first.mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.fixture
def app():
    return add_janus(make_app(janus_mod))


class Federation:
    """Files of all parties, and grids and strategies over them."""

    def __init__(self, folder, app, names=("s1", *CLIENTS), **changes):
        self.folder, self.app = folder, app
        self.config = JanusConfig(**{"length": 9, "max_weight": 1000, "clip": 2.0, **changes})
        self.keys = {}
        for name in ("s0", *names):
            self.add(name)
        self.names = list(names)
        self.write()

    def add(self, name):
        self.keys[name] = Keys.generate(name)
        self.keys[name].save(self.folder / f"{name}.key.json")

    def write(self):
        SessionFile.of(self.config, [keys.public for keys in self.keys.values()]).save(
            self.folder / "session.json"
        )

    def node(self, name):
        place = "abcdefgh".find(name)
        return {
            "janus-session": str(self.folder / "session.json"),
            "janus-keys": str(self.folder / f"{name}.key.json"),
            "janus-folder": str(self.folder / name),
            "step": 0.1 * (place + 1),
            "examples": 10 * (place + 1),
        }

    def grid(self, names=None, **options):
        return InProcessGrid(self.app, [self.node(name) for name in names or self.names], **options)

    def strategy(self, **options):
        return JanusStrategy(
            self.folder / "session.json",
            self.folder / "s0.key.json",
            self.folder / "s0",
            poll_seconds=0.01,
            **options,
        )


@pytest.fixture
def federation(tmp_path, app):
    return Federation(tmp_path, app)


def expected_step(names=CLIENTS):
    examples = {name: 10 * ("abcdefgh".find(name) + 1) for name in names}
    return sum(0.01 * n * n for n in examples.values()) / sum(examples.values())


def models(grid):
    return {
        context.node_config["janus-keys"].rsplit("/", 1)[1][0]: context.state[MODEL].to_numpy_ndarrays()
        for context in grid.contexts.values()
        if MODEL in context.state.array_records
    }


def test_three_rounds_move_every_client_s_model_by_the_mean(federation):
    grid = federation.grid()
    result = federation.strategy().start(grid, ArrayRecord(START), num_rounds=3, timeout=5)
    found = [dict(metrics) for metrics in result.train_metrics_clientapp.values()]
    assert found == [{"participants": 4, "accepted": 4}] * 3
    held = models(grid)
    assert set(held) == set(CLIENTS)
    for arrays in held.values():
        assert [array.dtype for array in arrays] == [array.dtype for array in START]
        for array in arrays:
            np.testing.assert_allclose(array, 3 * expected_step(), atol=3 * 4 / 65535)
    # Bit for bit the same everywhere.
    assert len({model_digest(arrays) for arrays in held.values()}) == 1
    assert result.evaluate_metrics_clientapp[3]["mean"] == pytest.approx(3 * expected_step(), abs=1e-3)
    assert not list(result.arrays)
    assert not grid.failures


def test_it_equals_fedavg_on_the_same_app(federation):
    plain = InProcessGrid(make_app(), [federation.node(name) for name in CLIENTS])
    expected = FedAvg(fraction_evaluate=0.0).start(plain, ArrayRecord(START), num_rounds=2).arrays
    grid = federation.grid()
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=2, timeout=5)
    for mine, theirs in zip(models(grid)["a"], expected.to_numpy_ndarrays(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2 * 4 / 65535)


def test_s0_sees_no_arrays_and_no_metrics_of_training(federation):
    seen = []
    grid = federation.grid(loses_reply=lambda reply: seen.append(reply) or False)
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    secret = np.float32(0.1).tobytes()
    for reply in seen:
        assert not reply.has_error()
        assert not reply.content.array_records
        for record in (*reply.content.config_records.values(), *reply.content.metric_records.values()):
            assert "secret-loss" not in record
            for value in record.values():
                assert not (isinstance(value, bytes) and secret in value)
    assert len(seen) >= 5 + 4 + 2 + 4


def test_a_client_that_is_killed_in_a_round_drops_out_and_the_round_ends_well(federation):
    lost = []

    def dies(reply):
        """b's node dies after it trained, in the second round, and never answers again."""
        record = reply.content.config_records.get("janus", {}) if reply.has_content() else {}
        if record.get("name") == "b" and "to-s0" in record and read_header(record["to-s0"])[0].round == 2:
            lost.append(reply.metadata.src_node_id)
        return reply.metadata.src_node_id in lost

    grid = federation.grid(loses_reply=dies)
    result = federation.strategy().start(grid, ArrayRecord(START), num_rounds=3, timeout=0.3)
    found = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    assert found[1] == {"participants": 4, "accepted": 4}
    assert found[2] == found[3] == {"participants": 3, "accepted": 3}
    expected = expected_step() + 2 * expected_step("acd")
    np.testing.assert_allclose(models(grid)["a"][1], expected, atol=3 * 4 / 65535)


def test_below_the_threshold_a_round_has_no_sum_and_models_stay(federation):
    grid = federation.grid(
        loses_reply=lambda reply: (
            reply.has_content()
            and reply.content.config_records.get("janus", {}).get("name") in ("b", "c")
            and "to-s0" in reply.content.config_records["janus"]
        )
    )
    result = federation.strategy().start(grid, ArrayRecord(START), num_rounds=2, timeout=0.3)
    assert [dict(m) for m in result.train_metrics_clientapp.values()] == [
        {"participants": 0, "accepted": 0}
    ] * 2
    for arrays in models(grid).values():
        for array, start in zip(arrays, START, strict=True):
            assert np.array_equal(array, start)


def test_all_may_restart_between_rounds(federation):
    for number in (1, 2, 3):
        strategy, grid = federation.strategy(), federation.grid()  # new contexts: only the folders remember
        result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
        assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 4}
        assert strategy.server.round == number
        np.testing.assert_allclose(models(grid)["c"][1], number * expected_step(), atol=number * 4 / 65535)
        strategy.server.release()


def test_a_client_that_joins_gets_the_model_from_another_client(federation):
    grid = federation.grid()
    strategy = federation.strategy(evaluate=False)
    strategy.start(grid, ArrayRecord(START), num_rounds=2, timeout=5)
    strategy.server.release()
    federation.add("e")
    federation.write()
    grid = federation.grid([*federation.names, "e"])
    relayed = []
    grid._loses_reply = lambda reply: relayed.append(reply) or False
    strategy = federation.strategy(evaluate=False)
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 5, "accepted": 5}
    held = models(grid)
    assert len({model_digest(arrays) for arrays in held.values()}) == 1
    expected = 2 * expected_step() + expected_step("abcde")
    np.testing.assert_allclose(held["e"][1], expected, atol=3 * 4 / 65535)
    # S_0 relayed the model sealed: its numbers stand in no reply.
    number = np.float64(models(grid)["a"][1][0]).tobytes()
    texts = [v for r in relayed for record in r.content.config_records.values() for v in record.values()]
    assert not any(isinstance(value, bytes) and number in value for value in texts)


def test_a_client_that_missed_the_end_of_a_round_catches_up(federation):
    strategy = federation.strategy(evaluate=False)
    strategy.start(federation.grid(), ArrayRecord(START), num_rounds=1, timeout=5)
    strategy.server.release()
    # b has an older model.
    (federation.folder / "b" / "model.npz").write_bytes(pack(Held(ArrayRecord(START))))
    grid = federation.grid()
    result = federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 4}
    assert len({model_digest(arrays) for arrays in models(grid).values()}) == 1


def test_a_client_that_leaves_is_not_asked_again(federation):
    strategy = federation.strategy(evaluate=False)
    grid = federation.grid()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    del federation.keys["d"]
    federation.write()
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 3, "accepted": 3}


def test_s0_that_sends_one_client_another_first_model_isolates_nobody(federation):
    """The model-inconsistency attack: the victim drops out of the sum and says so."""
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    honest = strategy.configure_train

    def cheat(*arguments):
        messages = list(honest(*arguments))
        messages[1].content["arrays"] = ArrayRecord([array + 1 for array in START])
        return messages

    strategy.configure_train = cheat
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 3, "accepted": 3}
    ((node, error),) = grid.failures
    assert grid.contexts[node].node_config["janus-keys"].endswith("b.key.json")
    assert isinstance(error, ProtocolError)
    assert error.check == "model"


def test_a_cheating_s0_changes_no_model(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    server = strategy.server
    honest = server.reply

    def cheat(name):
        sums = bytearray(server.sums())
        sums[3] ^= 1
        header = read_header(honest(name))[0]
        return seal(header, bytes(sums), server.keys, server.roster[name])

    server.reply = cheat
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 0}
    assert {error.check for _, error in grid.failures} == {"opening"}
    assert all(np.array_equal(arrays[1], START[1]) for arrays in models(grid).values())


def test_s1_does_not_sum_a_round_twice_whoever_asks(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    for stage in ({"stage": "sum", "round": 1, "messages": [], "list": b""}, {"stage": "dance"}):
        with pytest.raises(ProtocolError, match=r"was begun before|knows no stage"):
            strategy.members.ask_s1(**stage)
    with pytest.raises(ProtocolError, match="S_1 alone answers"):
        strategy.members.ask(strategy.members.clients[0].node, "janus_s1", stage="reply", names=[])


def test_without_s1_or_clients_it_says_who_is_missing(federation):
    strategy = federation.strategy()
    with pytest.raises(ProtocolError, match="S_1 is not there"):
        strategy.start(federation.grid(CLIENTS), ArrayRecord(START), num_rounds=1, timeout=0.1)
    federation_of_two = federation.grid(["s1", "a", "b"])
    with pytest.raises(ProtocolError, match="2 clients are there; S_1 and 3 clients are needed"):
        strategy.start(federation_of_two, ArrayRecord(START), num_rounds=1, timeout=0.1)


def test_what_the_strategy_refuses(federation):
    strategy = federation.strategy()
    with pytest.raises(InputError, match="evaluate_fn needs the model"):
        strategy.start(federation.grid(), ArrayRecord(START), evaluate_fn=lambda *_: None)
    with pytest.raises(InputError, match="the model has 3 numbers, the session's length is 9"):
        strategy.start(federation.grid(), ArrayRecord(START[1:]))
    federation.config = dataclasses.replace(federation.config, clip=3.0)
    (federation.folder / "session.json").unlink()
    federation.write()
    with pytest.raises(InputError, match="has other parameters or servers now"):
        strategy.start(federation.grid(), ArrayRecord(START), num_rounds=1, timeout=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"arrays": ArrayRecord(START)}, "no metric 'num-examples'"),
        ({"metrics": MetricRecord({"num-examples": 1})}, "returned 0 records of arrays"),
        (
            {"arrays": ArrayRecord(START[:1]), "metrics": MetricRecord({"num-examples": 1})},
            "arrays are unlike",
        ),
        *(
            (
                {"arrays": ArrayRecord(START), "metrics": MetricRecord({"num-examples": count})},
                "num-examples must be a whole number in [1, 1000]",
            )
            for count in (0, 1001, 10.9, float("nan"), float("inf"))
        ),
        (
            {
                "arrays": ArrayRecord([START[0] + np.nan, START[1]]),
                "metrics": MetricRecord({"num-examples": 1}),
            },
            "6 numbers not finite",
        ),
    ],
)
def test_train_functions_that_return_nonsense_are_told(federation, content, words):
    federation.app = add_janus(ClientApp(mods=[janus_mod]))
    federation.app.train()(lambda message, context: Message(RecordDict(dict(content)), reply_to=message))
    grid = federation.grid()
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=1, timeout=1)
    told = [str(error) for node, error in grid.failures if node != 2]  # 2 is S_1, which then lacks clients
    assert len(told) == 4
    assert all(words in text for text in told), told


def test_a_node_without_its_files_is_told(federation):
    grid = InProcessGrid(federation.app, [{}])
    (reply,) = grid.send_and_receive([Message(RecordDict(), 2, "query.janus_hello")])
    assert "has no 'janus-session'" in reply.error.reason


def test_an_app_without_the_mod_is_left_out_and_told(federation):
    federation.app = add_janus(make_app())
    grid = federation.grid()
    result = federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=1, timeout=1)
    assert result.train_metrics_clientapp[1]["participants"] == 0


def test_s0_cannot_ask_for_training_without_janus(federation):
    grid = InProcessGrid(federation.app, [federation.node(name) for name in CLIENTS])
    content = {"arrays": ArrayRecord(START), "config": ConfigRecord({"lr": 1.0})}
    for kind in ("train", "train.default", "evaluate", "evaluate.default"):
        (reply,) = grid.send_and_receive([Message(RecordDict(dict(content)), 2, kind)])
        assert "was asked for without Janus" in reply.error.reason
    janus = {**content, "janus": ConfigRecord({"round": 1})}
    (reply,) = grid.send_and_receive([Message(RecordDict(janus), 2, "train.default")])
    assert "was asked for without Janus" in reply.error.reason


def test_evaluations_that_return_arrays_are_refused(federation):
    app = add_janus(ClientApp(mods=[janus_mod]))
    app.evaluate()(lambda message, context: Message(message.content, reply_to=message))
    grid = InProcessGrid(app, [federation.node(name) for name in CLIENTS])
    content = {"arrays": ArrayRecord(START), "janus": ConfigRecord({"round": 1})}
    (reply,) = grid.send_and_receive([Message(RecordDict(content), 2, "evaluate")])
    assert "returned arrays, which S_0 could read" in reply.error.reason


def test_in_a_simulation_paths_name_the_partition(federation):
    for place, name in enumerate(federation.names):
        (federation.folder / f"{name}.key.json").rename(federation.folder / f"node-{place}.json")
    paths = {
        "janus-session": str(federation.folder / "session.json"),
        "janus-keys": str(federation.folder / "node-{partition}.json"),
        "janus-folder": str(federation.folder / "state-{partition}"),
    }
    nodes = [{"partition-id": k, "num-partitions": 5, "step": 0.1, "examples": 3} for k in range(5)]
    grid = InProcessGrid(federation.app, nodes, run_config=paths)
    result = federation.strategy().start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 4}


@pytest.fixture
def servers(federation, tmp_path):
    """Both servers of the federation, with folders of their own."""
    session = SessionFile.load(federation.folder / "session.json")
    made = [
        JanusServer(
            role,
            federation.keys[f"s{role}"],
            session.servers,
            session.roster,
            session.config,
            tmp_path / f"w{role}",
        )
        for role in (0, 1)
    ]
    yield made
    for server in made:
        server.release()


def test_models_are_handed_over_to_those_alone_for_whom_both_servers_vouch(federation, servers):
    session = SessionFile.load(federation.folder / "session.json")
    words = [vouch(server, 4, "a") for server in servers]
    assert vouched(words, session.servers, session.config, 4) == (federation.keys["a"].public, 0)
    stranger = Keys.generate("z")
    with pytest.raises(ProtocolError, match="not in the roster"):
        vouch(servers[1], 4, "z")
    # S_0 makes a roster of its own, to have a model sealed to itself.
    servers[0].roster = session.roster.joined(stranger.public)
    false_word = vouch(servers[0], 4, "z")
    for vouchers, check in (
        ([false_word, words[1]], "roster"),
        ([false_word, false_word], "recipient"),
        ([false_word], "signature"),
        (None, "signature"),
        (words[::-1], "recipient"),
    ):
        with pytest.raises(ProtocolError) as caught:
            vouched(vouchers, session.servers, session.config, 4)
        assert caught.value.check == check
    with pytest.raises(ProtocolError, match="the round 4; 5 is due"):
        vouched(words, session.servers, session.config, 5)


def test_models_are_packed_and_flattened_whole():
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7),
        np.ones(2, np.float16),
        np.array(2.5),
    ]
    record = ArrayRecord({f"layer.{k}": Array(array) for k, array in enumerate(arrays)})
    held = unpack(pack(Held(record, 7, bytes(range(32)))))
    assert (held.round, held.secret) == (7, bytes(range(32)))
    again = held.arrays
    assert list(again) == list(record)
    assert model_digest(again.to_numpy_ndarrays()) == model_digest(arrays)
    assert flat_length(arrays) == 9
    update = np.arange(9.0)
    moved = add_to(arrays, update)
    assert [array.dtype for array in moved] == [array.dtype for array in arrays]
    assert moved[1] == 7  # whole numbers stay
    np.testing.assert_allclose(difference(moved, arrays), update)
    with pytest.raises(InputError, match="update of 8 numbers cannot move a model of 9"):
        add_to(arrays, update[:8])
    with pytest.raises(ProtocolError, match="no packed model"):
        unpack(b"PK")
    with pytest.raises(InputError, match="no floating-point arrays"):
        difference([np.array(1)], [np.array(1)])


def test_a_node_knows_its_role(federation):
    grid = federation.grid()
    nodes = [Node(context) for context in grid.contexts.values()]
    assert [node.is_s1 for node in nodes] == [True, False, False, False, False]
    assert [node.tag for node in nodes] == [""] * 5


# What a cheating S_0 tells clients.


def cheats(strategy, change):
    """Let S_0 change the messages of a training: `change(name, content)` for each client."""
    honest = strategy.configure_train

    def cheat(*arguments):
        messages = list(honest(*arguments))
        for member, message in zip(strategy.members.clients, messages, strict=True):
            change(member.name, message.content)
        return messages

    strategy.configure_train = cheat


def zero_rate(content):
    content["config"] = ConfigRecord({**content["config"], "lr": 0.0})


def another_record(content):
    content["extra"] = MetricRecord({"lr": 0.0})


def another_array(content):
    content["mask"] = ArrayRecord([np.zeros(2)])


def other_names(content):
    content["arrays"] = ArrayRecord({"x": Array(START[0]), "y": Array(START[1])})


@pytest.mark.parametrize("change", [zero_rate, another_record, another_array, other_names])
def test_a_client_that_is_told_to_train_otherwise_is_summed_with_nobody(federation, change):
    """S_0 tells all but one to train at a rate of 0: the sum would be that one's update."""
    config = ConfigRecord({"lr": 0.1})
    for number, told in ((1, "b"), (2, "acd")):
        strategy, grid = federation.strategy(evaluate=False), federation.grid()
        cheats(strategy, lambda name, content, told=told: change(content) if name in told else None)
        result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5, train_config=config)
        # The victim's update is in no sum with the others', whichever side is larger.
        assert strategy.server.participants == ("a", "c", "d"), number
        assert dict(result.train_metrics_clientapp[1]) == {"participants": 3, "accepted": 4}
        assert not grid.failures
        strategy.server.release()


def test_the_model_is_the_first_record_wherever_s0_puts_it(federation):
    """An app may take the first arrays by place; S_0 sends others, and a placeholder before them to one."""
    first = []
    federation.app = add_janus(ClientApp(mods=[janus_mod]))

    @federation.app.train()
    def train(message, context):
        arrays = next(iter(message.content.array_records.values()))
        first.append([array.tolist() for array in arrays.to_numpy_ndarrays()])
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def change(name, content):
        model = content.pop("arrays", None)
        if name == "b":
            content["arrays"] = ArrayRecord([np.zeros(1)]) if model is None else model
        content["zz"] = ArrayRecord([array + 1 for array in START])
        if name != "b" and model is not None:
            content["arrays"] = model

    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    cheats(strategy, change)
    strategy.start(grid, ArrayRecord(START), num_rounds=2, timeout=5)
    assert len(first) == 8
    assert strategy.server.participants == ("a", "b", "c", "d")
    for number in (0, 4):
        assert first[number : number + 4] == [first[number]] * 4
    assert first[0] == [array.tolist() for array in START]


def test_an_order_of_a_late_round_does_not_shut_a_client_out(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    for number in (2**31, 2 + LEAP):
        order = RecordDict({"config": ConfigRecord(), "janus": ConfigRecord({"round": number})})
        (reply,) = grid.send_and_receive([Message(order, 4, "train")])
        assert f"round {number} is more than {LEAP} above 1" in reply.error.reason
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 4}


def test_what_a_train_function_raises_stays_in_its_log(federation, caplog):
    federation.app = add_janus(ClientApp(mods=[janus_mod]))

    @federation.app.train()
    def train(message, context):
        raise ValueError("patient 4711")

    seen = []
    grid = federation.grid(loses_reply=lambda reply: seen.append(reply) or False)
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    reasons = [reply.error.reason for reply in seen if reply.has_error()]
    assert "InputError: the train function of a raised ValueError; see its log" in reasons
    assert "4711" not in str(reasons)
    assert "patient 4711" in caplog.text


def test_clients_say_how_much_they_clip(federation, caplog):
    federation.app = add_janus(ClientApp(mods=[janus_mod]))

    @federation.app.train()
    def train(message, context):
        moved = [array + 9 * context.node_config["step"] for array in START]
        metrics = MetricRecord({"num-examples": 10.0})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    result = federation.strategy(evaluate=False).start(
        federation.grid(), ArrayRecord(START), num_rounds=1, timeout=5
    )
    assert result.train_metrics_clientapp[1]["accepted"] == 4
    # Moved by 0.9, 1.8, 2.7 and 3.6; the session's clip is 2.
    assert caplog.text.count("9 of 9 numbers clipped to 2; raise clip") == 2


def test_two_ways_to_train_equally_common_end_the_round(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    cheats(strategy, lambda name, content: zero_rate(content) if name in "ab" else None)
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert result.train_metrics_clientapp[1]["participants"] == 0


def test_instructions_differ_by_all_that_a_train_function_can_see():
    def of(run_config=(), **records):
        return instructions_digest(RecordDict(records), dict(run_config))

    arrays = ArrayRecord([np.zeros(2)])
    several = [
        of(),
        of(run_config=[("lr", 1)]),
        of(config=ConfigRecord({"lr": 1})),
        of(config=ConfigRecord({"lr": 1.0})),
        of(config=ConfigRecord({"lr": "1"})),
        of(config=ConfigRecord({"lr": True})),
        of(config=ConfigRecord({"lr": b"1"})),
        of(config=ConfigRecord({"lr": [1]})),
        of(config=ConfigRecord({"lr": 1, "b": 2})),
        of(config=ConfigRecord({"b": 2, "lr": 1})),
        of(config=MetricRecord({"lr": 1})),
        of(other=ConfigRecord({"lr": 1})),
        of(mask=arrays),
        of(mask=ArrayRecord([np.zeros((2, 1))])),
        of(mask=ArrayRecord([np.zeros(2, np.float32)])),
        of(mask=ArrayRecord([np.ones(2)])),
    ]
    assert len(set(several)) == len(several)
    # The model and Janus's own order are bound otherwise.
    assert of(arrays=arrays, janus=ConfigRecord({"round": 1})) == of()


def test_models_stand_under_tags_that_servers_cannot_guess(federation):
    seen = []
    grid = federation.grid(loses_reply=lambda reply: seen.append(reply) or False)
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=2, timeout=5)
    held = Node(grid.contexts[3]).held
    assert len(held.secret) == 32
    digest = model_digest(held.arrays.to_numpy_ndarrays())
    config = federation.config
    assert Node(grid.contexts[3]).tag == model_tag(held.secret, config, digest)
    assert Node(grid.contexts[3]).tag != model_tag(b"", config, digest)
    # All clients share the secret, and it stands in no reply.
    assert {Node(grid.contexts[node]).held.secret for node in (3, 4, 5, 6)} == {held.secret}
    texts = [v for r in seen for record in r.content.config_records.values() for v in record.values()]
    for value in texts:
        assert not (isinstance(value, bytes) and held.secret in value)
        assert digest not in str(value)


def test_no_client_trains_twice_for_a_round_also_after_a_restart(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    sent = []
    honest = strategy.configure_train
    strategy.configure_train = lambda *arguments: sent.extend(honest(*arguments)) or sent
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    for again in (grid, federation.grid()):
        message = Message(sent[0].content, sent[0].metadata.dst_node_id, "train")
        (reply,) = again.send_and_receive([message])
        assert "a has trained for round 1 already" in reply.error.reason


def test_clients_refuse_a_server_that_lost_its_folder(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    shutil.rmtree(federation.folder / "s1")
    # Beside its keys stands that there was one.
    with pytest.raises(ProtocolError, match="S_1 is not there"):
        strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=0.2)
    assert "not the folder that this server left" in str(grid.failures[-1][1])
    shutil.rmtree(federation.folder / "s1.key.rounds")
    grid.failures.clear()
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert result.train_metrics_clientapp[1]["participants"] == 0
    clients = [error for node, error in grid.failures if node != 2]
    assert [error.check for error in clients] == ["epoch"] * 4


def test_in_one_process_a_node_that_refuses_is_not_waited_for(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    start = time.monotonic()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=60)
    strategy.min_clients = 5
    with pytest.raises(ProtocolError, match="4 clients are there; S_1 and 5 clients are needed"):
        strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=60)
    shutil.rmtree(federation.folder / "s1")
    with pytest.raises(
        ProtocolError, match=r"S_1 is not there; node 2 refuses: InputError: .*not the folder"
    ):
        strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=60)
    assert time.monotonic() - start < 30


class Elsewhere(Grid):
    """A grid to which other nodes may come; it hands all to one in this process."""

    def __init__(self, grid):
        self.inner = grid

    def __getattr__(self, name):
        return getattr(self.inner, name)

    run = property(lambda self: self.inner.run)

    def set_run(self, run):
        self.inner.set_run(run)

    def create_message(self, *arguments):
        return self.inner.create_message(*arguments)

    def get_node_ids(self):
        return self.inner.get_node_ids()

    def push_messages(self, messages):
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids):
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages, *, timeout=None):
        return self.inner.send_and_receive(messages, timeout=timeout)


def test_elsewhere_a_node_that_refuses_is_asked_again_and_told_of(federation, caplog, monkeypatch):
    for name, value in (("RETRY_SECONDS", 0.05), ("NEWS_SECONDS", 0.1), ("REFUSALS", 8)):
        monkeypatch.setattr(flower_members, name, value)
    grid = federation.grid()
    key, away = federation.folder / "s1.key.json", federation.folder / "away.json"
    key.rename(away)
    strategy = federation.strategy(evaluate=False)
    with pytest.raises(ProtocolError, match=r"S_1 is not there; node 2 refuses: .* does not exist"):
        strategy.start(Elsewhere(grid), ArrayRecord(START), num_rounds=1, timeout=60)
    assert len(grid.failures) == 8
    assert "waiting for S_1; node 2 refuses: InputError" in caplog.text
    assert caplog.text.count("node 2 cannot take part") == 1
    # It comes back while it is asked again.
    grid.failures = Noticed(lambda: len(grid.failures) == 12 and away.rename(key), grid.failures)
    result = strategy.start(Elsewhere(grid), ArrayRecord(START), num_rounds=1, timeout=60)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 4, "accepted": 4}


class Noticed(list):
    """A list that calls what it is given after each append."""

    def __init__(self, call, content):
        super().__init__(content)
        self.call = call

    def append(self, value):
        super().append(value)
        self.call()


def test_a_restart_says_that_the_initial_arrays_are_ignored(federation, caplog):
    for _ in range(2):
        strategy = federation.strategy(evaluate=False)
        strategy.start(federation.grid(), ArrayRecord(START), num_rounds=2, timeout=5)
        strategy.server.release()
    said = "clients hold the model of round 2 already; the initial arrays are ignored"
    assert caplog.text.count(said) == 1
    assert caplog.text.count("initial arrays are ignored") == 1


def offer(federation, servers, giver, taker, arrays, summed=0):
    """S_0 and a client on its side bring another client a model; the reply."""
    for server in servers:
        server._store.state.round, server._store.state.phase = summed, "aggregated"
    config = federation.config
    box = Held(ArrayRecord(arrays), 10**6, b"")
    digest = model_digest(box.arrays.to_numpy_ndarrays())
    header = Header("model", config.session, config.digest, 9, giver, taker, model_tag(b"", config, digest))
    sealed = seal(header, pack(box), federation.keys[giver], federation.keys[taker].public)
    order = {"round": 9, "vouchers": [vouch(server, 9, giver) for server in servers], "model": sealed}
    return Message(RecordDict({"janus": ConfigRecord(order)}), CLIENTS.index(taker) + 3, "query.janus_take")


def test_s0_and_one_client_cannot_put_another_model_in_the_place_of_a_good_one(federation, servers):
    grid = federation.grid()
    federation.strategy(evaluate=False).start(grid, ArrayRecord(START), num_rounds=2, timeout=5)
    before = model_digest(models(grid)["b"])
    bad = [array + 7 for array in START]
    for summed in (0, 1, 2):
        (reply,) = grid.send_and_receive([offer(federation, servers, "d", "b", bad, summed)])
        assert "the model of b lacks no round" in reply.error.reason
        assert model_digest(models(grid)["b"]) == before
    # Where both servers say that a round was missed, it is taken, and counts as far as they say.
    (reply,) = grid.send_and_receive([offer(federation, servers, "d", "b", bad, 3)])
    assert not reply.has_error()
    assert Node(grid.contexts[4]).held.round == 3
    # The word of S_0 alone is not enough.
    message = offer(federation, servers, "d", "c", bad, 3)
    servers[1]._store.state.round = 2
    order = dict(message.content["janus"])
    order["vouchers"] = [order["vouchers"][0], vouch(servers[1], 9, "d")]
    message = Message(RecordDict({"janus": ConfigRecord(order)}), 5, "query.janus_take")
    (reply,) = grid.send_and_receive([message])
    assert "the model of c lacks no round" in reply.error.reason


def test_a_sum_is_applied_once(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    before = model_digest(models(grid)["a"])
    replies = strategy.members.ask_s1("reply", names=["a"])["replies"]
    message = strategy._replies(strategy.members.clients[0], replies[0])
    (reply,) = grid.send_and_receive([message])
    assert "is in the model of a already" in reply.error.reason
    assert model_digest(models(grid)["a"]) == before


def test_a_client_that_leaves_in_mid_round_does_not_keep_the_sum_from_others(federation):
    strategy, grid = federation.strategy(evaluate=False), federation.grid()
    honest = strategy.configure_train

    def leaves(*arguments):
        messages = list(honest(*arguments))
        left = dict(federation.keys)
        del left["d"]
        SessionFile.of(federation.config, [keys.public for keys in left.values()]).save(
            federation.folder / "session.json"
        )
        return messages

    strategy.configure_train = leaves
    result = strategy.start(grid, ArrayRecord(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"participants": 3, "accepted": 3}


@pytest.mark.parametrize(
    "order",
    [{}, {"round": 0}, {"round": "x"}, {"round": 10**12}, {"round": 1.5}, {"round": 1}, None],
)
@pytest.mark.parametrize("kind", ["train.janus_finish", "query.janus_take", "query.janus_give"])
def test_nonsense_from_s0_is_told_in_a_line(federation, kind, order):
    grid = federation.grid()
    grid.contexts[3].state[MODEL] = ArrayRecord(START)
    grid.contexts[3].state[HELD] = ConfigRecord({"round": 0, "secret": b""})
    content = RecordDict({} if order is None else {"janus": ConfigRecord(order)})
    (reply,) = grid.send_and_receive([Message(content, 3, kind)])
    assert reply.error.reason.startswith(("InputError", "ProtocolError"))


@pytest.mark.parametrize(
    "order", [{}, {"stage": "sum"}, {"stage": "reply", "names": "a"}, {"stage": "vouch"}]
)
def test_nonsense_to_s1_is_told_in_a_line(federation, order):
    grid = federation.grid()
    message = Message(RecordDict({"janus": ConfigRecord(order)}), 2, "query.janus_s1")
    (reply,) = grid.send_and_receive([message])
    assert "InputError: S_1 knows no stage" in reply.error.reason
