"""The commands, as a shell calls them; the Flower app that they write; and Ray."""

import json
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from safetensors.numpy import load_file

from hexad.core import cli
from hexad.core.errors import InputError
from hexad.core.files import alone_in
from hexad.federated.fedswa.simulation import Simulation, label_counts, simulate

SMALL = [
    *("--clients", "8", "--fraction", "0.5", "--alpha", "0.5", "--rounds", "4", "--local-steps", "3"),
    *("--evaluate-every", "2"),
]
PLAN = Simulation(clients=8, fraction=0.5, alpha=0.5, rounds=4, local_steps=3, evaluate_every=2)


def hexad(*words):
    """Run `hexad federated fedswa ...`; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hexad", "federated", "fedswa", *map(str, words)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code or 0
    return 0


def test_simulate_leaves_a_report_and_goes_on(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["simulate", "--out", out, "--strategy", "fedavg", "--strategy", "fedmoswa", *SMALL]
    assert hexad(*words) == 0
    printed, live = capsys.readouterr()
    assert str(out / "report.html") in printed
    assert live.count("fedmoswa round") == 3  # 0, 2 and 4
    report = json.loads((out / "report.json").read_text())
    assert set(report["runs"]) == {"fedavg", "fedmoswa"}
    assert report["runs"]["fedmoswa"]["megabytes"] == pytest.approx(2 * report["runs"]["fedavg"]["megabytes"])
    assert report["settings"]["clients"] == 8
    page = (out / "report.html").read_text()
    for name in ("partition.png", "curves.png"):
        assert (out / name).stat().st_size > 5000
        assert name in page
    before = load_file(out / "fedmoswa" / "model.safetensors")
    assert before["1.weight"].shape == (64, 784)

    assert hexad(*words, "--json") == 0  # all is done: nothing is trained again
    printed, live = capsys.readouterr()
    assert json.loads(printed)["runs"] == report["runs"]
    np.testing.assert_array_equal(
        load_file(out / "fedmoswa" / "model.safetensors")["1.weight"], before["1.weight"]
    )
    assert hexad(*words, "--rounds", "6") == 0
    longer = json.loads((out / "report.json").read_text())["runs"]["fedmoswa"]
    assert longer["rounds"] == 6
    assert longer["megabytes"] == pytest.approx(1.5 * report["runs"]["fedmoswa"]["megabytes"])
    assert hexad(*words, "--gamma", "0.5") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "holds a run with other settings" in error
    assert "gamma 0.2 -> 0.5" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--strategy", "fedmosva"], "unknown strategy 'fedmosva'; did you mean 'fedmoswa'?"),
        (["--rho", "0"], "rho is 0.0"),
        (["--server-alpha", "0"], "server_alpha is 0.0"),
        (["--gamma", "2"], "gamma is 2.0"),
        (["--local-steps", "0"], "local_steps is 0"),
        (["--clients", "1"], "clients is 1"),
        (["--clients", "4001"], "4001 clients for 4000 examples"),
        (["--partition", "even"], "unknown partition 'even'"),
        (["--alpha", "0"], "alpha is 0.0"),
        (["--strategy", "fedsam", "--sam-radius", "0"], "fedsam needs a sam_radius"),
        (["--lost", "1.5"], "lost is 1.5"),
        (["--course", "linear"], "unknown course 'linear'"),
    ],
)
def test_bad_simulations_are_one_line(tmp_path, capsys, words, message):
    assert hexad("simulate", "--out", tmp_path / "run", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("last", [2, 3])
def test_a_simulation_survives_an_interruption(tmp_path, last):
    """After a round that was tested (2) and after one that was not (3)."""
    whole = simulate(PLAN, tmp_path / "whole")

    def stop(fraction, note):
        if note.startswith(f"round {last}"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, tmp_path / "parts", progress=stop)
    rest = simulate(PLAN, tmp_path / "parts")
    assert [row["round"] for row in rest.history] == [0, 2, 4]
    for row, wanted in zip(rest.history, whole.history, strict=True):
        assert row == pytest.approx(wanted, rel=1e-12)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(rest.arrays[name], array)


def test_a_simulation_repeats_itself():
    first, second, other = (simulate(replace(PLAN, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.arrays["1.weight"], second.arrays["1.weight"])
    assert first.history == second.history
    assert first.history[-1] != other.history[-1]


def test_lost_replies_are_left_out_and_all_lost_keep_the_model():
    some = simulate(replace(PLAN, lost=0.4))
    assert some.history[-1]["accuracy"] > 0
    assert not np.array_equal(some.arrays["1.weight"], simulate(PLAN).arrays["1.weight"])
    with pytest.warns(UserWarning, match="no valid reply"):
        none = simulate(replace(PLAN, lost=1.0))
    assert none.history[0]["accuracy"] == none.history[-1]["accuracy"]


@pytest.mark.parametrize("strategy", ["fedavg", "fedsam", "fedswa", "fedmoswa", "scaffold"])
def test_every_strategy_learns(strategy):
    radius = 0.05 if strategy == "fedsam" else 0.0
    plan = replace(PLAN, strategy=strategy, rounds=8, sam_radius=radius, lr=0.3)
    run = simulate(plan)
    assert run.history[-1]["accuracy"] > 0.5 > 0.2 > run.history[0]["accuracy"]
    assert run.accuracy(1) == run.history[-1]["accuracy"]


def test_two_commands_in_one_folder_are_refused(tmp_path, capsys):
    with alone_in(tmp_path / "run", "--out"):
        assert hexad("simulate", "--out", tmp_path / "run", *SMALL) == 2
    assert "another run is writing to" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".lock"}


def test_the_partition_is_counted():
    counts = label_counts(PLAN)
    assert counts.shape == (8, 10)
    assert counts.sum() == 4000


def test_a_run_whose_clients_all_fail_says_why():
    # 1e20 overflows at once: the client's own error is what the user must see.
    with (
        pytest.warns(UserWarning, match="round 2 has no valid reply, 4 failed; the first: .*loss is"),
        pytest.raises(InputError, match=r"round 3 has no valid reply, 4 failed; the first: .*loss is"),
    ):
        simulate(replace(PLAN, lr=1e20))


def test_the_app_is_written_and_has_the_simulation_s_defaults(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert hexad("app", folder, "--json") == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert len(written) == 5
    assert {path.name for path in (folder / "fedmoswa_app").iterdir()} == {
        "__init__.py", "client_app.py", "server_app.py", "task.py",
    }  # fmt: skip
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    own = dict(settings["config"])
    assert own.pop("results") == ""
    assert own == Simulation().run_config()
    for name in settings["components"].values():
        assert (folder / (name.partition(":")[0].replace(".", "/") + ".py")).is_file()
    assert hexad("app", folder) == 2
    assert f"{folder} is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_variates_last_on_ray(tmp_path, monkeypatch):
    """Flower's simulation with Ray: a client keeps its variate, whichever worker it runs on."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from hexad.federated.fedswa import FedMoSWA
    from hexad.federated.fedswa.app.task import make_model
    from hexad.federated.fedswa.client import make_client_app

    def batches(context, number):
        generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        return [(torch.randn(8, 28, 28, generator=generator), torch.zeros(8, dtype=torch.long))]

    strategy = FedMoSWA(lr=0.1, local_steps=2, fraction_evaluate=0.0, checkpoints=tmp_path / "server")
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=3)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    client = make_client_app(make_model, batches, folder=tmp_path / "clients")
    run_simulation(server, client, 3, backend_config=resources)
    state = load_file(next((tmp_path / "server").glob("round-000003.safetensors")))
    assert np.abs(state["m.3.bias"]).max() > 0
    # Partitions, not workers, have the variates: three files for three clients.
    assert {path.name for path in (tmp_path / "clients").iterdir()} == {f"{i}.safetensors" for i in range(3)}
