"""What a client and a server remember: control variates in the context, in files, and whole runs."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hexad.core.errors import InputError
from hexad.federated.fedswa import ControlVariates, FedMoSWA, FedSWA, Scaffold, control_variate_mod
from hexad.federated.fedswa.memory import load_memory
from hexad.federated.flower import InProcessGrid

from .conftest import make_linear, make_network, numpy_of

SILENT = {"fraction_evaluate": 0.0}


def moving_app(mod, step=0.1, extra=None):
    """A client that moves every weight by `step`, with rates that sum to 0.5."""
    app = ClientApp(mods=[mod])
    seen = []

    @app.train()
    def train(message, context):
        seen.append(numpy_of(message.content["correction"]))
        arrays = {
            name: array + np.float32(step) for name, array in numpy_of(message.content["arrays"]).items()
        }
        content = RecordDict(
            {
                "arrays": ArrayRecord({n: _array(a) for n, a in arrays.items()}),
                "metrics": MetricRecord({"num-examples": 1, "lr-sum": 0.5}),
            }
        )
        if extra is not None:
            content["gradient"] = ArrayRecord({n: _array(np.full_like(a, extra)) for n, a in arrays.items()})
        return Message(content, reply_to=message)

    return app, seen


def _array(array):
    from flwr.app import Array

    return Array(np.ascontiguousarray(array))


def ask(grid, number, counted, m=0.0, rule="momentum", **config):
    """One message to the only client; gives the reply's content."""
    theta = {"w": _array(np.zeros(2, np.float32))}
    variate = {"w": _array(np.full(2, m, np.float32))}
    told = {"server-round": number, "counted-round": counted, "variate-rule": rule, **config}
    content = RecordDict(
        {"arrays": ArrayRecord(theta), "m": ArrayRecord(variate), "config": ConfigRecord(told)}
    )
    (reply,) = grid.send_and_receive([Message(content, 2, MessageType.TRAIN)])
    assert not reply.has_error(), reply.error.reason
    return reply.content


def test_the_mod_by_hand():
    """theta = 0, y = 0.1, sum of rates 0.5: c+ = c - m - 0.2."""
    app, seen = moving_app(control_variate_mod)
    grid = InProcessGrid(app, 1)
    first = ask(grid, 1, 0, m=0.5)
    np.testing.assert_allclose(seen[0]["w"], 0.5)  # m - 0
    np.testing.assert_allclose(first["u"]["w"].numpy(), -0.7 - 0.5, rtol=1e-6)  # c+ - m
    np.testing.assert_allclose(grid.contexts[2].state["c_i"]["w"].numpy(), -0.7, rtol=1e-6)
    second = ask(grid, 4, 1, m=0.1, rule="difference")
    np.testing.assert_allclose(seen[1]["w"], 0.8, rtol=1e-6)  # 0.1 + 0.7
    fresh = -0.7 - 0.1 - 0.2
    np.testing.assert_allclose(second["u"]["w"].numpy(), fresh + 0.7, rtol=1e-5)  # c+ - c
    assert "correction" not in second


def test_a_reply_that_was_not_counted_did_not_happen():
    app, seen = moving_app(control_variate_mod)
    grid = InProcessGrid(app, 1)
    ask(grid, 1, 0)
    ask(grid, 2, 1)
    ask(grid, 3, 1)  # round 2 was not counted
    np.testing.assert_array_equal(seen[1]["w"], seen[2]["w"])
    ask(grid, 5, 3)
    np.testing.assert_allclose(seen[3]["w"], 0.4, rtol=1e-6)  # counted: 1 and 3, each minus 0.2


def test_option_one_takes_the_gradient_of_the_reply():
    app, _ = moving_app(control_variate_mod, extra=3.0)
    grid = InProcessGrid(app, 1)
    reply = ask(grid, 1, 0, m=1.0)
    np.testing.assert_allclose(reply["u"]["w"].numpy(), 2.0)
    assert "gradient" not in reply
    np.testing.assert_allclose(grid.contexts[2].state["c_i"]["w"].numpy(), 3.0)


def test_a_stale_variate_corrects_nothing():
    app, seen = moving_app(control_variate_mod)
    grid = InProcessGrid(app, 1)
    ask(grid, 1, 0, **{"max-staleness": 3})
    ask(grid, 4, 1, m=0.5, **{"max-staleness": 3})
    np.testing.assert_allclose(seen[1]["w"], 0.7, rtol=1e-6)
    reply = ask(grid, 9, 4, m=0.5, rule="difference", **{"max-staleness": 3})
    np.testing.assert_array_equal(seen[2]["w"], 0.0)
    # c+ = m - m - 0.2, and SCAFFOLD's difference is still from what the server counted: -0.2 - 0.5 - 0.2.
    np.testing.assert_allclose(reply["u"]["w"].numpy(), -0.2 + 0.9, rtol=1e-5)


def test_a_stored_variate_of_another_kind_is_refused():
    app, _ = moving_app(control_variate_mod)
    grid = InProcessGrid(app, 1)
    ask(grid, 1, 0)
    grid.contexts[2].state["c_i"] = ArrayRecord({"w": _array(np.zeros(2, np.float64))})
    with pytest.raises(AssertionError, match="dtype of 'w' in the stored control variate is float64"):
        ask(grid, 2, 1)
    grid.contexts[2].state["c_i"] = ArrayRecord({"v": _array(np.zeros(2, np.float32))})
    with pytest.raises(AssertionError, match=r"the stored control variate lacks \['w'\]"):
        ask(grid, 2, 1)


@pytest.mark.parametrize("step", [np.nan, np.inf])
def test_a_client_that_diverged_remembers_nothing_of_it(step):
    app, _ = moving_app(control_variate_mod, step=step)
    grid = InProcessGrid(app, 1)
    with pytest.raises(AssertionError, match="not finite"):
        ask(grid, 1, 0)
    assert isinstance(grid.failures[0][1], InputError)
    assert "c_i" not in grid.contexts[2].state


def test_other_messages_pass_untouched():
    app = ClientApp(mods=[control_variate_mod])

    @app.train()
    def train(message, context):
        assert "correction" not in message.content
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, 1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), 2, MessageType.TRAIN)])
    assert not reply.has_error()
    assert not grid.contexts[2].state


def test_a_file_outlives_the_context(tmp_path):
    for number in (1, 2):  # a new grid each: what is known is in the file
        app, seen = moving_app(ControlVariates(tmp_path / "variates"))
        ask(InProcessGrid(app, 1), number, number - 1)
    np.testing.assert_allclose(seen[0]["w"], 0.2, rtol=1e-6)
    memory = load_memory(tmp_path / "variates" / "0.safetensors")
    assert list(memory.versions) == [1, 2]
    (tmp_path / "variates" / "0.safetensors").write_bytes(b"half")
    app, seen = moving_app(ControlVariates(tmp_path / "variates"))
    ask(InProcessGrid(app, 1), 3, 2)
    np.testing.assert_array_equal(seen[0]["w"], 0.0)  # a damaged file is an empty memory


@pytest.mark.parametrize("kind", [FedSWA, FedMoSWA, Scaffold])
def test_an_interrupted_run_ends_with_the_same_bits(federation, tmp_path, kind):
    def play(rounds, folder, part):
        strategy = kind(
            lr=0.1, local_steps=2, fraction_train=0.5, seed=5, checkpoints=folder / "server", **SILENT
        )
        told = []

        def evaluate(number, arrays):
            told.append(number)
            return MetricRecord({"round": number})

        grid = federation(folder=folder / "clients")
        start = ArrayRecord(make_network(part).state_dict())
        result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)
        return result, strategy, told

    whole, strategy, _ = play(6, tmp_path / "whole", 0)
    play(4, tmp_path / "parts", 0)
    rest, other, told = play(6, tmp_path / "parts", 1)  # the checkpoint wins over other first weights
    assert told == [4, 5, 6]
    assert list(rest.train_metrics_clientapp) == [5, 6]
    assert rest.evaluate_metrics_serverapp[6]["round"] == 6
    for name, array in numpy_of(whole.arrays).items():
        np.testing.assert_array_equal(numpy_of(rest.arrays)[name], array)
    for name, array in strategy.m.items():
        np.testing.assert_array_equal(other.m[name], array)
    again, _, told = play(6, tmp_path / "parts", 1)
    assert told == [6]
    np.testing.assert_array_equal(numpy_of(again.arrays)["0.weight"], numpy_of(whole.arrays)["0.weight"])


@pytest.mark.parametrize("kind", [FedMoSWA, Scaffold])
def test_replies_that_were_lost_stay_lost_after_a_resume(federation, tmp_path, kind):
    def play(rounds, folder):
        strategy = kind(
            lr=0.1, local_steps=2, fraction_train=0.5, seed=5, checkpoints=folder / "server", **SILENT
        )
        # What clients 2 and 4 send until round 3 never arrives; they have worked and remember it.
        grid = federation(
            make_linear,
            folder=folder / "clients",
            loses_reply=lambda reply: reply.metadata.src_node_id % 2 == 0 and strategy.hears < 4,
        )
        configure = strategy.configure_train

        def count(number, *more):
            strategy.hears = number + strategy._run.resumed
            return configure(number, *more)

        strategy.configure_train = count
        result = strategy.start(grid, ArrayRecord(make_linear().state_dict()), num_rounds=rounds)
        return numpy_of(result.arrays), strategy.m

    whole, m = play(8, tmp_path / "whole")
    play(3, tmp_path / "parts")
    rest, other = play(8, tmp_path / "parts")
    for name in whole:
        np.testing.assert_array_equal(rest[name], whole[name])
        np.testing.assert_array_equal(other[name], m[name])


def test_a_server_that_went_back_a_round_takes_the_clients_back_too(federation, tmp_path):
    def play(rounds, folder):
        strategy = Scaffold(lr=0.1, local_steps=2, checkpoints=folder / "server", **SILENT)
        grid = federation(make_linear, folder=folder / "clients")
        start = ArrayRecord(make_linear().state_dict())
        return numpy_of(strategy.start(grid, start, num_rounds=rounds).arrays), strategy

    whole, _ = play(5, tmp_path / "whole")
    play(4, tmp_path / "parts")
    (tmp_path / "parts" / "server" / "round-000004.safetensors").unlink()  # as if killed while writing it
    rest, _ = play(5, tmp_path / "parts")
    # Client ids and samples are the same; only the order of sums may differ.
    np.testing.assert_allclose(rest["weight"], whole["weight"], atol=1e-6)


def test_checkpoints_are_refused_where_they_do_not_fit(federation, tmp_path):
    def play(network=make_linear, kind=FedMoSWA, **options):
        strategy = kind(lr=0.1, local_steps=1, checkpoints=tmp_path, **options, **SILENT)
        strategy.start(federation(network), ArrayRecord(network().state_dict()), num_rounds=1)

    play()
    for change in ({"gamma": 0.5}, {"rho": 1.0}, {"kind": Scaffold}, {"weighted": True}):
        with pytest.raises(InputError, match="holds a run with other settings"):
            play(**change)
    with pytest.raises(InputError, match=r"the checkpoint in .* lacks"):
        play(make_network)


def test_only_two_checkpoints_stay(federation, tmp_path):
    strategy = FedSWA(lr=0.1, local_steps=1, checkpoints=tmp_path, checkpoint_every=2, **SILENT)
    strategy.start(federation(make_linear), ArrayRecord(make_linear().state_dict()), num_rounds=7)
    names = sorted(path.name for path in tmp_path.glob("*"))
    names.remove(".lock")
    assert names == ["round-000006.safetensors", "round-000007.safetensors"]
