"""The examples of the README's section on fedswa run as they stand; five lines do convert an app."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hexad.federated.fedswa import FedMoSWA, control_variate_mod, cyclic_sgd
from hexad.federated.flower import InProcessGrid

from .conftest import client_batches, make_linear, numpy_of

README = Path(__file__).parents[2] / "README.md"
SECTION = README.read_text(encoding="utf-8").split("\n## fedswa")[1].split("\n## ")[0]


def run(*command, folder):
    arguments = [sys.executable, *command]
    return subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True).stdout


def an_app(converted):
    """The README's app before and after; the lines that differ are those of its diff."""
    app = ClientApp()
    epochs = 2

    @app.train(mods=[control_variate_mod] if converted else [])
    def train(message, context):
        model = make_linear()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loader = client_batches(context.node_config["partition-id"], 0)
        if converted:
            optimizer = cyclic_sgd(model, message, steps=epochs * len(loader))
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
        for _ in range(epochs):
            for inputs, classes in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs), classes)
                loss.backward()
                optimizer.step()
        metrics = {"num-examples": 24, "train-loss": float(loss.detach())}
        if converted:
            metrics["lr-sum"] = optimizer.lr_sum
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    return app


def loss_of_all(arrays):
    """Mean loss of a global model over the data of all clients."""
    model = make_linear()
    model.load_state_dict(arrays.to_torch_state_dict())
    batches = [batch for part in range(6) for batch in client_batches(part, 0)]
    with torch.no_grad():
        return float(np.mean([torch.nn.functional.cross_entropy(model(x), y) for x, y in batches]))


def test_five_lines_convert_an_app():
    from flwr.app import ConfigRecord

    initial = ArrayRecord(make_linear().state_dict())
    before = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    after = FedMoSWA(lr=0.1, fraction_train=0.5, fraction_evaluate=0.0)
    config = ConfigRecord({"lr": 0.1})
    for strategy, converted in ((before, False), (after, True)):
        grid = InProcessGrid(an_app(converted), 6)
        result = strategy.start(grid, initial, num_rounds=6, train_config=config)
        assert not grid.failures
        assert loss_of_all(result.arrays) < loss_of_all(initial) - 0.2
    # m moved, and every client that took part has a variate of its own.
    assert np.abs(after.m["weight"]).max() > 1e-3
    own = [numpy_of(c.state["c_i"])["weight"] for c in grid.contexts.values() if "c_i" in c.state]
    assert len(own) >= 3
    assert not np.allclose(own[0], own[1])


def test_the_readme_shows_those_lines():
    added = [line[1:].strip() for line in SECTION.splitlines() if re.match(r"\+\s*\w|\+@", line)]
    assert [line.split("(")[0] for line in added] == [
        "strategy = FedMoSWA",
        "@app.train",
        "optimizer = cyclic_sgd",
        "metrics = MetricRecord",
    ]
    assert "from hexad.federated.fedswa import FedMoSWA, control_variate_mod, cyclic_sgd" in SECTION


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path):
    blocks = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    lines = [line for code in blocks for line in code.splitlines() if line.startswith("hexad ")]
    commands = [shlex.split(line)[1:] for line in lines]
    assert [command[2] for command in commands] == ["app", "simulate", "simulate"]
    for command in commands:
        run("-m", "hexad.core.cli", *command, folder=tmp_path)
    assert (tmp_path / "my-app" / "fedmoswa_app" / "task.py").is_file()
    for folder in ("digits", "lossy"):
        assert (tmp_path / folder / "report.html").is_file()
    assert (tmp_path / "lossy" / "scaffold" / "model.safetensors").is_file()
