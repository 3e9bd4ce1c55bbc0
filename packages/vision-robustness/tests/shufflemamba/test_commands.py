"""The commands as a user calls them: `hexad vision-robustness shufflemamba ...`."""

import csv
import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

from hexad.vision_robustness import shufflemamba
from hexad.vision_robustness.shufflemamba import VisionMamba, shuffling
from hexad.vision_robustness.shufflemamba.storage import load_network

BRIEF = ("--img-size", "16", "--epochs", "2", "--batch-size", "8", "--no-flip", "--lr", "3e-3")


@pytest.fixture
def trained(hexad, data, tmp_path):
    """A run of the small network, and the report that the command printed."""
    code, out, _ = hexad("train", data, "--out", tmp_path / "run", *BRIEF, "--json")
    assert code == 0
    return tmp_path / "run", json.loads(out)


def test_train_eval_and_predict(hexad, data, tmp_path, trained):
    run, report = trained
    assert report["steps"] == 6
    assert report["recipe"]["slws_rate"] == 0.3
    assert {path.name for path in run.iterdir()} >= {"model.safetensors", "report.json", "training.png"}
    assert json.loads((run / "report.json").read_text()) == report

    code, out, _ = hexad("eval", run, data / "val", "--forced-shuffle", 0.5, "--json")
    assert code == 0
    scored = json.loads(out)
    assert scored["top1"] == report["validation"]["top1"]
    assert scored["forced_shuffle"]["pictures"] == 10
    assert scored["forced_shuffle"]["loss"] != scored["loss"]
    assert sum(one["pictures"] for one in scored["classes"].values()) == 10
    code, out, _ = hexad("eval", run, data / "val", "--forced-shuffle", 0.5)
    assert "pictures named rightly" in out
    assert "with the last 50% of the blocks shuffled" in out

    code, out, _ = hexad("predict", run, data / "val", "--out", tmp_path / "names.csv", "--top", 5)
    assert code == 0
    rows = list(csv.DictReader((tmp_path / "names.csv").open()))
    assert len(rows) == 10
    assert list(rows[0]) == ["path", "class", "probability", "class_2", "probability_2"]
    for row in rows:
        assert float(row["probability"]) + float(row["probability_2"]) == pytest.approx(1, abs=1e-5)
    right = sum(row["class"] in row["path"] for row in rows) / 10
    assert right == scored["top1"]


def test_the_same_command_again_trains_nothing(hexad, data, trained):
    run, _ = trained
    before = (run / "model.safetensors").read_bytes()
    code, out, _ = hexad("train", data, "--out", run, *BRIEF)
    assert code == 0
    assert f"{run / 'model.safetensors'}: " in out
    assert (run / "model.safetensors").read_bytes() == before
    code, _, err = hexad("train", data, "--out", run, *BRIEF, "--slws-rate", 0.1)
    assert code == 2
    assert "belongs to a run with other settings (slws_rate: 0.3 -> 0.1)" in err


def test_predict_names_what_it_leaves_out(hexad, data, trained, tmp_path):
    (data / "val/dark/broken.png").write_text("no picture")
    code, out, err = hexad("predict", trained[0], data / "val", "--out", tmp_path / "a.csv", "--json")
    assert code == 1
    assert "left out" in err
    assert list(json.loads(out)["unreadable"]) == [str(data / "val/dark/broken.png")]
    code, _, err = hexad("predict", trained[0], data / "val/dark/00.png", "--out", data / "val/dark/00.png")
    assert code == 2
    assert "is one of the pictures" in err


def test_a_checkpoint_of_vim_is_tuned(hexad, data, tmp_path):
    torch.manual_seed(5)
    official = VisionMamba(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_classes=7, class_position="middle"
    )
    torch.save({"model": official.state_dict()}, tmp_path / "vim.pth")
    code, out, _ = hexad(
        "train", data, "--out", tmp_path / "run", "--weights", tmp_path / "vim.pth", *BRIEF, "--lr", "1e-9",
        "--json",
    )  # fmt: skip
    assert code == 0
    network, _ = load_network(tmp_path / "run")
    assert json.loads(out)["model"] == "VisionMamba"
    assert network.class_position == "middle"
    torch.testing.assert_close(
        network.layers[1].mixer.in_proj.weight, official.layers[1].mixer.in_proj.weight, atol=1e-6, rtol=0
    )
    assert network.head.out_features == 2


def test_a_run_is_tuned_at_another_size_and_with_other_classes(hexad, data, tmp_path, trained):
    (data / "train/grey").mkdir()
    for number in range(8):
        Image.new("RGB", (16, 16), (100 + number,) * 3).save(data / "train/grey" / f"{number}.png")
    (data / "val/grey").mkdir()
    Image.new("RGB", (16, 16), (110,) * 3).save(data / "val/grey/0.png")
    options = [*BRIEF, "--img-size", "20", "--lr", "1e-9", "--epochs", "1"]
    code, _, _ = hexad("train", data, "--out", tmp_path / "tuned", "--weights", trained[0], *options)
    assert code == 0
    before, (after, description) = load_network(trained[0])[0], load_network(tmp_path / "tuned")
    assert description.classes == ["bright", "dark", "grey"]
    assert after.class_position == "front"
    assert after.pos_embed.shape == (1, 26, 64)
    torch.testing.assert_close(after.pos_embed[:, 0], before.pos_embed[:, 0], atol=1e-6, rtol=0)
    weights = [network.layers[3].mixer.in_proj.weight for network in (after, before)]
    torch.testing.assert_close(*weights, atol=1e-6, rtol=0)
    # The same folder does not go on from other first weights.
    other = tmp_path / "other"
    code, _, _ = hexad("train", data, "--out", other, *BRIEF, "--epochs", "1", "--seed", "1")
    code, _, err = hexad("train", data, "--out", tmp_path / "tuned", "--weights", other, *options)
    assert code == 2
    assert "other settings (first weights" in err


def test_any_model_of_timm_trains_with_slws(hexad, data, tmp_path):
    code, out, _ = hexad(
        "train", data, "--out", tmp_path / "run", "--model", "test_vit", *BRIEF, "--img-size", 32, "--json"
    )
    assert code == 0
    assert json.loads(out)["model"] == "test_vit"
    code, out, _ = hexad("eval", tmp_path / "run", data / "val")
    assert code == 0
    code, _, err = hexad("train", data, "--out", tmp_path / "b", "--model", "resnet18", *BRIEF)
    assert code == 2
    assert "BasicBlock was called with a tensor of shape (2, 64, 4, 4); SLWS shuffles tokens" in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "vim_slws_tny"), "timm has no model 'vim_slws_tny'; did you mean 'vim"),
        (("--img-size", "18"), "img_size of 18 x 18 pixels is no whole number of patches of 4 x 4"),
        (("--slws-rate", "1.5"), "slws_rate is 1.5"),
        (("--epochs", "0"), "epochs is 0"),
        (("--weights", "nowhere.pth"), "nowhere.pth does not exist"),
        (("--augment", "full", "--batch-size", "7"), "mixup pairs pictures"),
        (("--accelerator", "abacus"), "device 'abacus' cannot be used here"),
        (("--held-out", "1"), "held_out is 1.0"),
        (("--weights", "a.pth", "--model", "vim_slws_tiny"), "leave out --model vim_slws_tiny"),
        (("--workers", "-1"), "--workers is -1"),
    ],
)
def test_bad_options_are_one_line_before_anything_is_touched(hexad, data, tmp_path, arguments, message):
    code, _, err = hexad("train", data, "--out", tmp_path / "run", *BRIEF, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_ctrl_c_says_how_to_go_on(hexad, data, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hexad.vision_robustness.shufflemamba.training.train", interrupted)
    code, _, err = hexad("train", data, "--out", tmp_path / "run", *BRIEF)
    assert code == 130
    assert "the same command goes on from there" in err


def test_a_run_inside_its_data_is_refused(hexad, data):
    code, _, err = hexad("train", data, "--out", data / "run", *BRIEF)
    assert code == 2
    assert "lies in the data folder" in err


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom hexad.vision_robustness.shufflemamba import commands\n"
        "assert not {'torch', 'timm', 'numpy'} & set(sys.modules), sorted(sys.modules)[:5]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_public_names_are_all_there():
    for name in shufflemamba.__all__:
        assert getattr(shufflemamba, name).__doc__
    assert shufflemamba.layer_probs is shuffling.layer_probs
