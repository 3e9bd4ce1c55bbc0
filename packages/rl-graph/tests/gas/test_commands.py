"""The commands as a user calls them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from gas_chains import line

from hexad.core.cli import main
from hexad.rl_graph.gas.agent import GAS
from hexad.rl_graph.gas.readers import load_ogbench_npz, write_ogbench_npz

TINY = ("--tdr-steps", "3", "--policy-steps", "3", "--hidden", "8", "--batch-size", "16")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Call the command line in this process and folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hexad", "rl-graph", "gas", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_from_data_to_a_picture(run):
    code, out, err = run("generate", "medium", "--episodes", "10", "--out", "medium.npz")
    assert code == 0, err
    assert "medium.npz: 10 episodes, 2,010 states" in out
    assert len(load_ogbench_npz("medium.npz")) == 2010
    code, out, err = run("train", "medium.npz", "--out", "run", "--horizon", "1", *TINY)
    assert code == 0, err
    assert "run: tdr, graph, policy of 2,010 states in 10 trajectories" in out
    assert "graph: " in out
    code, out, err = run("evaluate", "run", "--tasks", "1,3", "--episodes", "2", "--max-steps", "5", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["task"] for row in found["tasks"]] == [1, 3]
    assert all(row["moves"] == 5 for row in found["tasks"])
    code, out, err = run(
        "evaluate", "run", "--tasks", "1", "--episodes", "1", "--max-steps", "5", "--no-graph"
    )
    assert code == 0, err
    assert out.splitlines()[-1].split()[0] == "all"
    code, out, err = run("plot", "run", "--out", "a.png", "--gif", "a.gif", "--max-steps", "30", "--json")
    assert code == 0, err
    assert json.loads(out)["moves"] == 30
    assert Path("a.png").stat().st_size > 10_000
    from PIL import Image

    with Image.open("a.gif") as image:
        assert 1 < image.n_frames <= 31, "frames that are alike are one"


def test_stages_one_by_one_and_with_other_settings(run):
    write_ogbench_npz("data.npz", line((40, 30)))
    for stage in ("tdr", "graph", "policy"):
        code, out, err = run("train", "data.npz", "--horizon", "0.3", "--stage", stage, *TINY)
        assert code == 0, err
        assert f"gas-run: {stage} of 70 states" in out
    graph = Path("gas-run/graph.npz").read_bytes()
    arguments = (
        "train",
        "data.npz",
        "--stage",
        "graph",
        "--horizon",
        "0.3",
        "--te-threshold",
        "-1",
        "--json",
    )
    code, out, err = run(*arguments, *TINY)
    assert code == 0, err
    assert json.loads(out)["kept"] == 1.0
    assert Path("gas-run/graph.npz").read_bytes() != graph
    code, _, err = run("train", "data.npz", "--stage", "tdr", "--gamma", "0.9", *TINY)
    assert code == 2
    assert "other settings (gamma: 0.99 -> 0.9)" in err


def test_training_longer_says_what_begins_anew(run):
    write_ogbench_npz("data.npz", line((40, 30)))
    train = ("train", "data.npz", "--horizon", "0.3")
    assert run(*train, *TINY)[0] == 0
    code, _, err = run(*train, *TINY, "--tdr-steps", "6")
    assert code == 0, err
    (said,) = [text for text in err.splitlines() if "changed" in text]
    assert "graph.npz, policy.safetensors, the policy's checkpoints of the old one dropped" in said
    assert "changed" not in run(*train, *TINY, "--tdr-steps", "6")[2]
    GAS.load("gas-run")
    before = {path: path.read_bytes() for path in Path("gas-run").rglob("*") if path.is_file()}
    code, _, err = run("train", "data.npz", "--horizon", "0.4", *TINY, "--tdr-steps", "6")
    assert code == 2
    assert "made with horizon 0.3, not 0.4" in err
    write_ogbench_npz("data.npz", line((40, 30), seed=1))
    code, _, err = run(*train, "--stage", "graph")
    assert code == 2
    assert "trained on other data" in err
    assert before == {path: path.read_bytes() for path in Path("gas-run").rglob("*") if path.is_file()}


def test_a_new_graph_keeps_the_latch_and_knows_its_embedding_s_gamma(run):
    write_ogbench_npz("data.npz", line((200, 300)))
    settings = ("--latch", "1", "--gamma", "0.995", *TINY)
    assert run("train", "data.npz", "--stage", "tdr", *settings)[0] == 0
    assert run("train", "data.npz", "--stage", "graph", "--horizon", "0.2", *settings)[0] == 0
    code, _, err = run("train", "data.npz", "--stage", "graph", "--horizon", "0.3")
    assert code == 0, err
    assert json.loads(Path("gas-run/agent.json").read_text())["latch"] == 1
    code, _, err = run("train", "data.npz", "--stage", "graph", "--horizon", "150")
    assert "out of reach" not in err


def test_a_gpu_that_is_not_there_is_one_line(run, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    write_ogbench_npz("data.npz", line((40, 30)))
    code, _, err = run("train", "data.npz", "--device", "cuda")
    assert code == 2
    assert "device 'cuda' cannot be used here" in " ".join(err.split())
    assert "Traceback" not in err
    assert not Path("gas-run").exists()


def test_short_trajectories_are_said_once(run):
    write_ogbench_npz("data.npz", line((40, 5)))
    code, out, err = run("train", "data.npz", "--horizon", "8", "--stage", "tdr", "--json", *TINY)
    assert code == 0, err
    unheeded, said = json.loads(out)["warnings"]
    assert unheeded == "--policy-steps play no part in --stage tdr"
    assert said.startswith("1 of 2 trajectories are shorter")
    assert err.count("shorter than horizon") == 1


def test_ctrl_c_says_that_the_same_command_goes_on(run, monkeypatch):
    write_ogbench_npz("data.npz", line((40, 30)))
    arguments = ("train", "data.npz", "--horizon", "0.3", *TINY)
    fit, stopped = GAS.fit, []

    def interrupted(self, *given, **named):
        if named["stages"] == ("policy",) and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        return fit(self, *given, **named)

    monkeypatch.setattr(GAS, "fit", interrupted)
    code, _, err = run(*arguments)
    assert code == 130
    assert "gas-run keeps what is finished; the same command goes on" in err
    assert Path("gas-run/graph.npz").is_file()
    assert not Path("gas-run/policy.safetensors").exists()
    assert run(*arguments)[0] == 0
    assert Path("gas-run/policy.safetensors").is_file()


def test_what_was_dropped_is_said_however_the_run_ends(run, monkeypatch):
    write_ogbench_npz("data.npz", line((40, 30)))
    arguments = ("train", "data.npz", "--horizon", "0.3", *TINY)
    assert run(*arguments)[0] == 0
    fit = GAS.fit

    def interrupted(self, *given, **named):
        if named["stages"] == ("policy",):
            raise KeyboardInterrupt
        return fit(self, *given, **named)

    monkeypatch.setattr(GAS, "fit", interrupted)
    code, _, err = run(*arguments, "--tdr-steps", "6")
    assert code == 130
    assert "of the old one dropped" in err
    monkeypatch.undo()


def test_straight_runs_need_no_graph_and_tasks_are_named_once(run):
    code, _, err = run("generate", "medium", "--episodes", "5", "--out", "medium.npz")
    assert code == 0, err
    for stage in ("tdr", "policy"):
        assert run("train", "medium.npz", "--stage", stage, *TINY)[0] == 0
    short = ("gas-run", "--episodes", "1", "--max-steps", "3", "--tasks", "1")
    code, _, err = run("evaluate", *short)
    assert code == 2
    assert "has no graph.npz" in err
    assert run("evaluate", *short, "--no-graph")[0] == 0
    code, _, err = run("evaluate", *short[:-1], "1,1", "--no-graph")
    assert code == 2
    assert "name one twice" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "missing.npz"), "does not exist"),
        (("train", "bad.npz"), "actions must lie in [-1, 1]"),
        (("train", "data.npz", "--te-threshold", "2"), "te_threshold"),
        (("train", "data.npz", "--horizon", "100"), "out of reach"),
        (("train", "data.npz", "--tdr-steps", "0"), "steps"),
        (("train", "data.npz", "--stage", "graph"), "fit the stage tdr first"),
        (("train", "data.npz", "--observation-key", "x"), "observation_key is for dictionary"),
        (("generate", "medium", "--out", "a.csv"), "must end in .npz"),
        (("generate", "medium", "--out", "nowhere/a.npz"), "folder of output nowhere does not exist"),
        (("generate", "medium", "--episodes", "0"), "episodes"),
        (("evaluate", "nowhere"), "does not exist"),
        (("evaluate", "nowhere", "--tasks", "a"), "give numbers separated by commas"),
        (("plot", "nowhere", "--out", "a.txt"), "must end in .png"),
        (("plot", "nowhere", "--gif", "a.mp4"), "must end in .gif"),
    ],
)
def test_bad_input_is_one_line_before_any_file(run, arguments, message):
    write_ogbench_npz("data.npz", line((40, 30)))
    np.savez("bad.npz", observations=np.zeros((3, 2)), actions=np.full((3, 2), 3.0), terminals=[0, 0, 1])
    before = sorted(path for path in Path().rglob("*") if path.is_file())
    code, out, err = run(*arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""
    assert sorted(path for path in Path().rglob("*") if path.is_file()) == before


def test_help_teaches(run):
    for command in ("generate", "train", "evaluate", "plot"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "hexad rl-graph gas" in out, "an example"
