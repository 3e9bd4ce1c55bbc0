"""The Flower strategies: FedAvg to the last bit, a plain numpy reference, dropouts, what is refused."""

import random

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hexad.core.errors import InputError
from hexad.federated.fedswa import (
    FedMoSWA,
    FedSWA,
    LocalConfig,
    RoundSchedule,
    Scaffold,
    control_variate_mod,
    local_train,
)
from hexad.federated.flower import InProcessGrid

from .conftest import CLIENTS, client_batches, make_linear, make_network, numpy_of

SILENT = {"fraction_evaluate": 0.0}


def initial(network=make_network):
    return ArrayRecord(network().state_dict())


def run(strategy, grid, rounds=3, network=make_network, **options):
    return numpy_of(strategy.start(grid, initial(network), num_rounds=rounds, **options).arrays)


def reference(
    kind, rounds, network=make_linear, rho=0.1, alpha=1.5, gamma=0.2, lr=0.1, steps=3, clients=CLIENTS
):
    """FedSWA, FedMoSWA or SCAFFOLD with full participation, in float64 numpy around torch's local steps."""
    theta = {name: p.double().numpy() for name, p in network().state_dict().items()}
    m = {name: np.zeros_like(p) for name, p in theta.items()}
    c = [dict(m) for _ in range(clients)]
    for number in range(1, rounds + 1):
        ends, fresh = [], []
        for part in range(clients):
            model = network().double()
            model.load_state_dict({name: torch.from_numpy(p.copy()) for name, p in theta.items()})
            shift = None
            if kind != "fedswa":
                shift = {name: torch.from_numpy(m[name] - c[part][name]) for name in m}
            batches = [(x.double(), y) for x, y in client_batches(part, number)]
            local_train(model, batches, LocalConfig(lr, steps, rho), shift)
            end = {name: p.numpy() for name, p in model.state_dict().items()}
            total = sum(lr * (1 - k / steps + k / steps * rho) for k in range(steps))
            ends.append(end)
            fresh.append({n: c[part][n] - m[n] + (theta[n] - end[n]) / total for n in m})
        theta = {n: theta[n] + alpha * (np.mean([e[n] for e in ends], 0) - theta[n]) for n in theta}
        rate = gamma if kind == "fedmoswa" else 1.0
        m = {n: m[n] + rate * np.mean([f[n] - m[n] for f in fresh], 0) for n in m}
        c = fresh
    return theta, m


def test_with_rho_and_alpha_one_it_is_flower_s_fedavg_to_the_last_bit(federation):
    """Equal num-examples, the same batches, replies in the same order."""
    settings = ConfigRecord({"lr": 0.1, "local-steps": 3, "weight-decay": 1e-3, "clip-norm": 10.0})
    random.seed(0)
    theirs = run(FedAvg(**SILENT), federation(), train_config=settings)
    random.seed(0)
    ours = run(FedSWA(lr=0.1, rho=1.0, server_alpha=1.0, local_steps=3, **SILENT), federation())
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        if np.issubdtype(ours[name].dtype, np.floating):
            np.testing.assert_array_equal(ours[name], array)
        else:  # Flower makes a float of a counter; ours stays whole
            assert ours[name] == round(float(array))


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("fedswa", FedSWA(lr=0.1, local_steps=3, **SILENT)),
        ("fedmoswa", FedMoSWA(lr=0.1, local_steps=3, **SILENT)),
        ("scaffold", Scaffold(lr=0.1, local_steps=3, **SILENT)),
    ],
)
def test_a_run_is_the_reference_in_plain_numpy(federation, kind, strategy):
    ours = run(strategy, federation(make_linear), rounds=5, network=make_linear)
    options = {"rho": 1.0, "alpha": 1.0} if kind == "scaffold" else {}
    theta, m = reference(kind, 5, **options)
    for name, array in theta.items():
        np.testing.assert_allclose(ours[name], array, atol=2e-6)
        if kind != "fedswa":
            np.testing.assert_allclose(strategy.m[name], m[name], atol=2e-5)
            assert np.abs(m[name]).max() > 1e-3


def test_the_first_round_of_fedmoswa_is_fedswa(federation):
    options = {"lr": 0.1, "server_alpha": 1.0, "local_steps": 3, "seed": 1, **SILENT}
    first = run(FedSWA(**options), federation(), rounds=1)
    second = run(FedMoSWA(gamma=0.0, **options), federation(), rounds=1)
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


def test_a_warm_start_takes_the_mean_of_the_first_variates(federation):
    cold = FedMoSWA(lr=0.1, local_steps=3, gamma=0.25, **SILENT)
    warm = FedMoSWA(lr=0.1, local_steps=3, gamma=0.25, warm_start_m=True, **SILENT)
    for strategy in (cold, warm):
        run(strategy, federation(), rounds=1)
    for name, array in cold.m.items():
        np.testing.assert_allclose(warm.m[name], 4 * array, rtol=1e-5, atol=1e-9)


def test_buffers_are_averaged_not_extrapolated(federation):
    strategy = FedSWA(lr=0.1, local_steps=3, server_alpha=30.0, **SILENT)
    arrays = run(strategy, federation(), rounds=1)
    assert arrays["1.running_var"].min() > 0
    assert arrays["1.num_batches_tracked"] == 3
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert set(FedMoSWA(lr=0.1, **SILENT).m) == set()
    moswa = FedMoSWA(lr=0.1, local_steps=3, **SILENT)
    run(moswa, federation(), rounds=1)
    assert set(moswa.m) == {name for name, _ in make_network().named_parameters()}


class Shuffled(InProcessGrid):
    """Replies come back in another order."""

    def send_and_receive(self, messages, *, timeout=None):
        return list(super().send_and_receive(messages))[::-1]


def test_the_order_of_replies_does_not_matter(federation):
    strategies = [FedMoSWA(lr=0.1, local_steps=3, seed=1, **SILENT) for _ in range(2)]
    grid = federation()
    turned = Shuffled(grid._apps, len(grid.contexts))
    first, second = (run(s, g) for s, g in zip(strategies, (grid, turned), strict=True))
    for name, array in first.items():  # but for the rounding of sums
        np.testing.assert_allclose(second[name], array, atol=1e-6)


def test_the_choice_of_nodes_follows_seed_and_round(federation):
    seen = []

    class Watching(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            seen.append(tuple(message.metadata.dst_node_id for message in messages))
            return super().push_messages(messages)

    apps = federation()._apps
    for seed in (1, 1, 2):
        strategy = FedSWA(lr=0.1, local_steps=1, fraction_train=0.5, seed=seed, **SILENT)
        run(strategy, Watching(apps, CLIENTS), rounds=4)
    rounds = [nodes for nodes in seen if nodes]
    assert rounds[:4] == rounds[4:8]
    assert rounds[:4] != rounds[8:]
    assert len(set(rounds[:4])) > 1
    assert all(len(set(nodes)) == 3 for nodes in rounds)


def test_late_replies_are_left_out_and_undone(federation):
    """A client whose reply was lost goes back to the variate that the server counted."""
    lost = {"on": False}

    def loses(reply):
        return lost["on"] and reply.metadata.src_node_id == 4

    grid = federation(make_linear, loses_reply=loses)
    strategy = Scaffold(lr=0.1, local_steps=3, **SILENT)

    class Losing(Scaffold):
        def configure_train(self, server_round, *arguments):
            lost["on"] = server_round in (2, 3)
            return super().configure_train(server_round, *arguments)

    strategy = Losing(lr=0.1, local_steps=3, **SILENT)
    run(strategy, grid, rounds=5, network=make_linear)
    # c is the mean of all clients' variates, although two replies were lost in between.
    for name, array in strategy.m.items():
        own = [numpy_of(context.state["c_i"])[name] for context in grid.contexts.values()]
        np.testing.assert_allclose(array, np.mean(own, 0), atol=1e-6)


def test_scaffold_s_variate_stays_the_mean_while_nodes_come_and_go(federation):
    """Three clients at first, then all six, some away in between: the sum of all c_i over the most seen."""
    seen = {1: 3, 2: 3, 3: 6, 4: 5, 5: 4, 6: 6}

    class Coming(InProcessGrid):
        number = 1

        def get_node_ids(self):
            return sorted(super().get_node_ids())[: seen[self.number]]

    class Counting(Scaffold):
        def configure_train(self, server_round, arrays, config, grid):
            grid.number = server_round
            return super().configure_train(server_round, arrays, config, grid)

    for rounds, most in ((2, 3), (3, 6), (5, 6), (6, 6)):
        grid = Coming(federation(make_linear)._apps, CLIENTS)
        strategy = Counting(lr=0.1, local_steps=3, fraction_train=0.7, seed=4, **SILENT)
        run(strategy, grid, rounds=rounds, network=make_linear)
        own = [numpy_of(c.state["c_i"]) for c in grid.contexts.values() if "c_i" in c.state]
        for name, array in strategy.m.items():
            np.testing.assert_allclose(array, np.sum([c[name] for c in own], 0) / most, atol=1e-6)
            assert np.abs(array).max() > 1e-3


def test_scaffold_refuses_more_nodes_than_it_was_told_of(federation):
    strategy = Scaffold(lr=0.1, local_steps=1, clients=4, fraction_train=0.5, **SILENT)
    with pytest.raises(InputError, match="6 nodes are connected and Scaffold was told of clients=4"):
        run(strategy, federation(make_linear), rounds=1, network=make_linear)


def test_names_of_parameters_may_come_from_a_generator(federation):
    names = (name for name, _ in make_linear().named_parameters())
    strategy = FedMoSWA(lr=0.1, local_steps=1, parameters=names, **SILENT)
    run(strategy, federation(make_linear), rounds=2, network=make_linear)
    assert strategy.m.keys() == {"weight", "bias"}


def test_clients_that_raise_are_left_out(federation):
    grid = federation(make_linear)
    broken = ClientApp()

    @broken.train()
    def train(message, context):
        raise RuntimeError("out of memory")

    apps = dict(grid._apps) | {3: broken}
    strategy = FedMoSWA(lr=0.1, local_steps=3, **SILENT)
    arrays = run(strategy, InProcessGrid(apps, CLIENTS), rounds=2, network=make_linear)
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert not np.array_equal(arrays["weight"], make_linear().weight.detach().numpy())


def test_no_valid_reply_keeps_the_model_and_warns(federation):
    grid = federation(make_linear, loses_reply=lambda reply: True)
    strategy = FedMoSWA(lr=0.1, local_steps=3, **SILENT)
    with pytest.warns(UserWarning, match="round 1 has no valid reply; the global model stays"):
        arrays = run(strategy, grid, rounds=1, network=make_linear)
    np.testing.assert_array_equal(arrays["weight"], make_linear().weight.detach().numpy())
    assert all(not array.any() for array in strategy.m.values())


def replying(change):
    """A client app whose honest reply is changed before it is sent."""
    app = ClientApp(mods=[control_variate_mod])

    def spoil(message, context, call_next):
        reply = call_next(message, context)
        change(reply.content)
        return reply

    app._mods.insert(0, spoil)

    @app.train()
    def train(message, context):
        dict(message.content.get("correction", {}).items())  # looked at, as `cyclic_sgd` does
        arrays = {name: array.numpy() + 0.1 for name, array in message.content["arrays"].items()}
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
                "metrics": MetricRecord({"num-examples": 5, "lr-sum": 0.3}),
            }
        )
        return Message(content, reply_to=message)

    return app


def put(record, name, value):
    def change(content):
        if value is None:
            del content[record][name]
        else:
            content[record][name] = value

    return change


BAD = [
    (put("arrays", "weight", None), r"the model lacks \['weight'\]"),
    (put("arrays", "extra", Array(np.zeros(1, np.float32))), r"the model has the unknown \['extra'\]"),
    (put("arrays", "bias", Array(np.zeros(3))), "dtype of 'bias'"),
    (put("arrays", "bias", Array(np.zeros(2, np.float32))), "shape of 'bias'"),
    (put("arrays", "bias", Array(np.full(3, np.nan, np.float32))), "'bias' in the model is not finite"),
    (
        put("u", "bias", Array(np.full(3, np.inf, np.float32))),
        "'bias' in the control variate's update is not",
    ),
    (put("u", "bias", None), "the control variate's update lacks"),
    (put("metrics", "lr-sum", 0.0), "lr-sum is 0.0"),
    (put("metrics", "lr-sum", None), "lack the number 'lr-sum'"),
    (put("metrics", "num-examples", None), "lack the number 'num-examples'"),
    (lambda content: content.pop("u"), "lacks the ArrayRecord 'u'"),
    (lambda content: content.pop("metrics"), "holds 0 MetricRecords"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_replies_that_cannot_be_averaged_are_refused_or_left_out(change, message):
    honest, bad = replying(lambda content: None), replying(change)
    apps = {2: honest, 3: bad, 4: honest}
    strategy = FedMoSWA(lr=0.1, **SILENT)
    with pytest.raises(InputError, match=message) as caught:
        run(strategy, InProcessGrid(apps, 3), rounds=1, network=make_linear)
    assert str(caught.value).startswith("reply of node 3 cannot be averaged: ")
    assert "\n" not in str(caught.value)
    assert all(not array.any() for array in strategy.m.values())  # nothing was changed before it was refused

    lenient = FedMoSWA(lr=0.1, server_alpha=1.0, bad_replies="leave out", **SILENT)
    with pytest.warns(UserWarning, match="node 3 cannot be averaged.*it is left out"):
        arrays = run(lenient, InProcessGrid(apps, 3), rounds=1, network=make_linear)
    np.testing.assert_allclose(arrays["weight"], make_linear().weight.detach().numpy() + 0.1, rtol=1e-6)


def test_clients_may_report_metrics_of_their_own_but_the_same():
    def add(name):
        return lambda content: content["metrics"].update({name: 2.0})

    strategy = FedSWA(lr=0.1, **SILENT)
    grid = InProcessGrid({2: replying(add("f1")), 3: replying(add("f1"))}, 2)
    result = strategy.start(grid, initial(make_linear), num_rounds=1)
    assert result.train_metrics_clientapp[1]["f1"] == pytest.approx(2.0)
    grid = InProcessGrid({2: replying(add("f1")), 3: replying(add("f2"))}, 2)
    with pytest.raises(InputError, match="different metrics"):
        strategy.start(grid, initial(make_linear), num_rounds=1)


def test_weights_count_where_they_are_asked_for():
    def shift(amount, examples):
        def change(content):
            content["metrics"]["num-examples"] = examples
            arrays = {n: Array(a.numpy() + np.float32(amount)) for n, a in content["arrays"].items()}
            content["arrays"] = ArrayRecord(arrays)
            if "u" in content:
                update = {n: Array(np.full_like(a.numpy(), amount)) for n, a in content["u"].items()}
                content["u"] = ArrayRecord(update)

        return change

    apps = {2: replying(shift(0.0, 1)), 3: replying(shift(4.0, 3))}
    for weighted, mean in ((False, 2.0), (True, 3.0)):
        momentum = FedMoSWA(lr=0.1, gamma=1.0, weighted=weighted, **SILENT)
        run(momentum, InProcessGrid(apps, 2), rounds=1, network=make_linear)
        np.testing.assert_allclose(momentum.m["bias"], mean)
    start = make_linear().weight.detach().numpy() + 0.1
    for weighted, moved in ((False, 2.0), (True, 3.0)):
        strategy = FedSWA(lr=0.1, server_alpha=1.0, weighted=weighted, **SILENT)
        arrays = run(strategy, InProcessGrid(apps, 2), rounds=1, network=make_linear)
        np.testing.assert_allclose(arrays["weight"], start + moved, rtol=1e-5)


def test_the_rate_comes_from_the_strategy_or_from_train_config(federation):
    told = []

    class Watching(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            told.extend(dict(message.content["config"]) for message in messages[:1])
            return super().push_messages(messages)

    grid = Watching(federation()._apps, CLIENTS)
    run(FedSWA(local_steps=1, **SILENT), grid, rounds=1, train_config=ConfigRecord({"lr": 0.05, "mine": "x"}))
    assert (told[0]["lr"], told[0]["mine"], told[0]["rho"]) == (0.05, "x", 0.1)
    strategy = FedSWA(lr=0.4, local_steps=1, schedule=RoundSchedule("exponential", 0.5), **SILENT)
    run(strategy, grid, rounds=3)
    assert [config["lr"] for config in told[1:]] == pytest.approx([0.4, 0.2, 0.1])
    with pytest.raises(InputError, match=r"lr is 0\.4 and train_config says 0\.1"):
        run(strategy, grid, rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    with pytest.raises(InputError, match="no learning rate; pass lr to FedSWA"):
        run(FedSWA(**SILENT), grid, rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedSWA(rho=0.0), "rho is 0"),
        (lambda: FedSWA(rho=1.1), "rho is 1.1"),
        (lambda: FedSWA(server_alpha=0.0), "server_alpha is 0"),
        (lambda: FedSWA(server_alpha=-1), "server_alpha is -1"),
        (lambda: FedSWA(local_steps=0), "local_steps is 0"),
        (lambda: FedSWA(lr=0.0), "lr is 0"),
        (lambda: FedMoSWA(gamma=-0.1), "gamma is -0.1"),
        (lambda: FedMoSWA(gamma=1.1), "gamma is 1.1"),
        (lambda: FedMoSWA(max_staleness=0), "max_staleness is 0"),
        (lambda: FedMoSWA(warm_start_m=1), "warm_start_m is 1"),
        (lambda: Scaffold(server_lr=0.0), "server_lr is 0"),
        (lambda: Scaffold(clients=0), "clients is 0"),
        (lambda: Scaffold(weighted=True), "weighted=True is not for Scaffold"),
        (lambda: FedSWA(fraction_train=1.2), "fraction_train is 1.2"),
        (lambda: FedSWA(seed=-1), "seed is -1"),
        (lambda: FedSWA(bad_replies="drop"), "unknown bad_replies 'drop'"),
        (lambda: FedSWA(parameters="weight"), "parameters is the string"),
        (lambda: FedSWA(schedule="cosine"), "pass a RoundSchedule"),
        (lambda: FedSWA(clip_norm=0.0), "clip_norm is 0"),
    ],
)
def test_bad_strategies_are_refused(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_parameters_that_the_model_lacks_are_refused(federation):
    with pytest.raises(InputError, match=r"parameters names \['3.wait'\]"):
        run(FedMoSWA(lr=0.1, parameters=["3.wait"], **SILENT), federation())
