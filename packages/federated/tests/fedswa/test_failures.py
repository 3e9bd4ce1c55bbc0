"""Clients that fail, reply badly or ignore what they are told: who is left out, and when a run ends."""

import copy

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from hexad.core.errors import InputError
from hexad.federated.fedswa import (
    CyclicSGD,
    FedMoSWA,
    FedSWA,
    LocalConfig,
    LocalResult,
    Scaffold,
    control_variate_mod,
    correction_of,
    cyclic_sgd,
    full_gradient,
    local_config,
    make_client_app,
    train_reply,
)
from hexad.federated.fedswa.local import local_train
from hexad.federated.flower import InProcessGrid

from .conftest import client_batches, make_linear, make_network, numpy_of

SILENT = {"fraction_evaluate": 0.0}


def start(strategy, grid, rounds=3, network=make_linear, **more):
    return strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds, **more)


def moving(metrics=None, fails=lambda number: False):
    """A client that adds 0.1 to its model."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        if fails(message.content["config"]["server-round"]):
            raise RuntimeError("out of memory\nreally")
        arrays = {n: Array(a.numpy() + np.float32(0.1)) for n, a in message.content["arrays"].items()}
        record = MetricRecord({"num-examples": 5, "train-loss": 1.0} if metrics is None else metrics)
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": record}), reply_to=message)

    return app


ODD = [
    ({"num-examples": 0, "train-loss": 1.0}, "num-examples is 0"),
    ({"num-examples": 5, "loss": 1.0}, r"different metrics from most replies \(\['loss', 'train-loss'\]\)"),
    ({"num-examples": 5, "train-loss": [1.0]}, r"different metrics from most replies \(\['train-loss'\]\)"),
]


@pytest.mark.parametrize(("metrics", "message"), ODD)
def test_metrics_that_cannot_be_averaged_are_refused_or_left_out(tmp_path, metrics, message):
    grid = InProcessGrid({2: moving(metrics), 3: moving(), 4: moving()}, 3)
    strategy = FedSWA(lr=0.1, checkpoints=tmp_path, **SILENT)
    with pytest.raises(InputError, match=f"reply of node 2 cannot be averaged: .*{message}"):
        start(strategy, grid, 1)
    assert not list(tmp_path.glob("round-*"))
    lenient = FedSWA(lr=0.1, bad_replies="leave out", **SILENT)
    with pytest.warns(UserWarning, match=f"node 2 cannot be averaged: .*{message}.*it is left out"):
        result = start(lenient, grid, 1)
    assert result.train_metrics_clientapp[1]["train-loss"] == 1.0


def test_no_examples_anywhere_is_a_failed_round_not_a_division():
    grid = InProcessGrid(moving({"num-examples": 0}), 3)
    strategy = FedSWA(lr=0.1, bad_replies="leave out", **SILENT)
    with (
        pytest.warns(UserWarning, match="it is left out"),
        pytest.raises(InputError, match="round 1 has no valid reply, 3 failed; the first: reply of node"),
    ):
        start(strategy, grid, 1)


def test_three_failed_rounds_on_end_end_a_run_and_keep_what_is_finished(tmp_path):
    def options(rounds):
        return {"lr": 0.1, "server_alpha": 1.0, "checkpoints": tmp_path, "checkpoint_every": 50, **SILENT}

    broken = InProcessGrid(moving(fails=lambda number: number in (2, 5, 6, 7)), 3)
    with (
        pytest.warns(UserWarning, match="round 2 has no valid reply, 3 failed; the first: node"),
        pytest.raises(InputError, match=r"round 7 .*RuntimeError: out of memory really") as caught,
    ):
        start(FedSWA(**options(9)), broken, 9)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-000004.safetensors"]
    result = start(FedSWA(**options(9)), InProcessGrid(moving(), 3), 9)
    assert list(result.train_metrics_clientapp) == [5, 6, 7, 8, 9]
    wanted = make_linear().weight.detach().numpy() + 0.8  # of nine rounds the second alone moved nothing
    np.testing.assert_allclose(numpy_of(result.arrays)["weight"], wanted, rtol=1e-5)


def test_a_run_that_is_shorter_ends_when_all_of_it_failed():
    grid = InProcessGrid(moving(fails=lambda number: True), 2)
    with pytest.raises(InputError, match="round 1 has no valid reply, 2 failed"):
        start(FedSWA(lr=0.1, **SILENT), grid, 1)
    with (
        pytest.warns(UserWarning, match="the global model stays"),
        pytest.raises(InputError, match="round 5 has no valid reply"),
    ):
        start(FedSWA(lr=0.1, max_failed_rounds=5, **SILENT), grid, 9)


class Tied(nn.Module):
    """Two layers with one weight, beside a frozen one and a batch norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.norm(self.second(self.first(x).tanh())))


@pytest.mark.parametrize("kind", [FedSWA, FedMoSWA, Scaffold])
def test_a_tied_parameter_of_which_one_name_is_given_is_refused(federation, kind):
    names = [name for name, _ in Tied().named_parameters()]
    assert "second.weight" not in names
    strategy = kind(lr=0.1, local_steps=2, parameters=names, **SILENT)
    with pytest.raises(InputError, match=r"'first\.weight' and 'second\.weight' are one tied .*remove_dup"):
        start(strategy, federation(Tied), network=Tied)
    for every in (None, [name for name, _ in Tied().named_parameters(remove_duplicate=False)]):
        strategy = kind(lr=0.1, local_steps=2, parameters=every, **SILENT)
        arrays = numpy_of(start(strategy, federation(Tied), network=Tied).arrays)
        np.testing.assert_array_equal(arrays["first.weight"], arrays["second.weight"])


def test_a_frozen_copy_is_no_tied_parameter(federation):
    class Copied(nn.Module):
        def __init__(self):
            super().__init__()
            self.live, self.target = make_linear(), make_linear().requires_grad_(False)

        def forward(self, x):
            return self.live(x) - self.target(x)

    names = ["live.weight", "live.bias"]
    strategy = FedSWA(lr=0.1, local_steps=2, parameters=names, **SILENT)
    grid = federation(Copied)
    start(strategy, grid, network=Copied)
    assert not grid.failures


@pytest.mark.parametrize("named", ["all", "part"])
def test_option_one_takes_frozen_and_tied_models(named):
    """The gradient of the model that was sent, in a federation of a model with all of these."""
    app = ClientApp(mods=[control_variate_mod])

    @app.train()
    def train(message, context):
        model = Tied()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        batches = client_batches(0, 1)
        gradient = full_gradient(model, batches)
        result = local_train(model, batches, local_config(message), correction_of(message))
        reply = train_reply(message, model, result)
        reply.content["gradient"] = ArrayRecord(gradient)
        return reply

    parameters = (
        None
        if named == "all"
        else ["head.weight", "norm.weight", "norm.bias", "first.weight", "second.weight"]
    )
    grid = InProcessGrid(app, 2)
    strategy = FedMoSWA(lr=0.1, local_steps=2, parameters=parameters, gamma=1.0, **SILENT)
    start(strategy, grid, 1, network=Tied)
    assert not grid.failures
    model = Tied().train()
    wanted = full_gradient(model, client_batches(0, 1))
    for name, m in strategy.m.items():
        np.testing.assert_allclose(m, wanted[name].numpy(), atol=1e-7)


def test_a_loop_that_ignores_the_correction_is_told():
    app = ClientApp(mods=[control_variate_mod])

    @app.train()
    def train(message, context):
        model = make_linear()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.step()
        metrics = MetricRecord({"num-examples": 1, "lr-sum": 0.1})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    with pytest.raises(InputError, match="did not use the correction; make its optimizer by cyclic_sgd"):
        start(FedMoSWA(lr=0.1, local_steps=1, **SILENT), InProcessGrid(app, 2), 1)


def test_another_mod_may_copy_the_message():
    def copying(message, context, call_next):
        return call_next(copy.deepcopy(message), context)

    app = ClientApp(mods=[control_variate_mod, copying])

    @app.train()
    def train(message, context):
        model = make_linear()
        optimizer = cyclic_sgd(model, message)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        metrics = MetricRecord({"num-examples": 1, "lr-sum": optimizer.lr_sum})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    grid = InProcessGrid(app, 2)
    start(FedMoSWA(lr=0.1, local_steps=1, **SILENT), grid, 2)
    assert not grid.failures


def test_a_parameter_named_like_a_statistic_says_how_it_is_trained(federation):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = make_linear()
            self.running_mean = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.body(x - self.running_mean)

    options = {"lr": 0.1, "local_steps": 1, **SILENT}
    with pytest.raises(InputError, match=r"lacks \['running_mean'\], which the model trains; .*parameters="):
        start(FedMoSWA(**options), federation(Named), 1, network=Named)
    names = [name for name, _ in Named().named_parameters(remove_duplicate=False)]
    strategy = FedMoSWA(parameters=names, **options)
    start(strategy, federation(Named), 1, network=Named)
    assert np.abs(strategy.m["running_mean"]).max() > 0


def test_an_initial_model_that_is_not_finite_is_blamed_on_nobody_else(federation):
    arrays = {
        name: Array(np.full(p.shape, np.nan, np.float32)) for name, p in make_linear().named_parameters()
    }
    with pytest.raises(InputError, match="'weight' in the initial model is not finite"):
        FedSWA(lr=0.1, local_steps=1).start(federation(make_linear), ArrayRecord(arrays))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_train_nodes": 7}, "min_train_nodes is 7 and the grid has 6 nodes"),
        ({"min_available_nodes": 9}, "min_available_nodes is 9 and the grid has 6 nodes"),
        ({"min_evaluate_nodes": 8, "fraction_evaluate": 0.5}, "min_evaluate_nodes is 8 and"),
    ],
)
def test_more_nodes_than_there_will_be_are_refused_at_once(federation, options, message):
    with pytest.raises(InputError, match=message):
        start(FedSWA(lr=0.1, local_steps=1, **SILENT | options), federation(make_linear))


def test_train_config_may_not_say_other_than_the_strategy(federation):
    for name, value in (("rho", 0.5), ("weight-decay", 0.0), ("clip-norm", 1.0), ("local-steps", 9)):
        with pytest.raises(InputError, match=f"train_config says {name} {value}.*set it in FedSWA alone"):
            start(
                FedSWA(lr=0.1, local_steps=1, **SILENT),
                federation(make_linear),
                train_config=ConfigRecord({name: value}),
            )


def test_an_unknown_option_has_a_near_miss():
    with pytest.raises(InputError, match=r"unknown option of FedMoSWA 'frction_train'; did you mean"):
        FedMoSWA(frction_train=0.5)


def test_numpy_s_numbers_serve(federation):
    strategy = FedMoSWA(lr=np.float32(0.1), rho=np.float32(0.5), local_steps=np.int64(2), **SILENT)
    start(strategy, federation(make_linear), 1)
    assert type(strategy.local_steps) is int


def test_clients_evaluate_what_they_are_given(federation):
    app = make_client_app(
        make_network,
        lambda context, number: client_batches(context.node_config["partition-id"], number),
        load_test_batches=lambda context, number: client_batches(context.node_config["partition-id"], 99),
    )
    strategy = FedSWA(lr=0.1, local_steps=1)
    result = start(strategy, InProcessGrid(app, 3), 1, network=make_network)
    model = make_network().eval()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    inputs, classes = (
        torch.cat(x) for x in zip(*(b for i in range(3) for b in client_batches(i, 99)), strict=True)
    )
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(inputs), classes)
        right = (model(inputs).argmax(1) == classes).double().mean()
    assert result.evaluate_metrics_clientapp[1]["eval-loss"] == pytest.approx(float(loss), rel=1e-5)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(float(right))
    with pytest.warns(
        UserWarning, match="no client could evaluate; .*give make_client_app load_test_batches"
    ):
        start(strategy, federation(make_linear), 1)


def test_a_model_in_bfloat16_is_refused_by_name():
    model = make_linear().to(torch.bfloat16)
    message = Message(RecordDict({"arrays": ArrayRecord({})}), 2, "train")
    with pytest.raises(InputError, match="hold no bfloat16, as 'weight' is"):
        train_reply(message, model, LocalResult({}, 1, 0.1, 1.0, 1))


def test_a_round_s_optimizer_takes_names_once_and_no_state():
    config = LocalConfig(0.1, np.int64(3))
    assert type(config.local_steps) is int
    model = make_linear()
    with pytest.raises(InputError, match="takes names with the parameters"):
        CyclicSGD(model.parameters(), config)
    optimizer = CyclicSGD(model.named_parameters(), config)
    with pytest.raises(InputError, match="make a new one with all of them"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(InputError, match="loads no state"):
        optimizer.load_state_dict(optimizer.state_dict())
    words = nn.Embedding(5, 2, sparse=True)
    optimizer = CyclicSGD(words.named_parameters(), config)
    words(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="gradient of 'weight' is sparse"):
        optimizer.step()
