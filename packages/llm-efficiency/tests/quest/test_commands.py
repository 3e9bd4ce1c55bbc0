"""The command line, from `hexad` itself: text in, models out."""

import functools
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("lightning_fabric")


@pytest.fixture
def hexad(llm_efficiency):
    """Run `hexad llm-efficiency quest ...`; gives (exit code, stdout, stderr)."""
    return functools.partial(llm_efficiency, "quest")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for place in range(3):
        (folder / f"{place}.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    return folder


SMALL = ("--batch", 2, "--context", 32, "--hidden", 32, "--layers", 1, "--heads", 2)


@pytest.fixture(scope="module")
def trained(hexad_code, texts, tmp_path_factory):
    """A run of thirty steps."""
    out = tmp_path_factory.mktemp("run")
    command = ("llm-efficiency", "quest", "train", texts, "--out", out, "--bits", 2, "--steps", 30)
    assert hexad_code(*command, *SMALL) == 0
    return out


def test_train_writes_a_model_its_losses_and_a_plot(trained):
    report = json.loads((trained / "report.json").read_text())
    assert len(report["train_losses"]) == 30
    assert report["train_losses"][-1] < report["train_losses"][0] - 0.3
    assert report["config"]["w_bits"] == 2
    assert 2.5 < report["unigram_nats_per_byte"] < 3.5
    assert (trained / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert (trained / "model" / "model.safetensors").is_file()


def test_export_and_eval_agree_with_training(hexad, trained, texts, tmp_path):
    report = json.loads((trained / "report.json").read_text())
    code, printed, _ = hexad("export", trained / "model", "--out", tmp_path / "packed")
    assert code == 0
    assert "7 layers of 2 bits take" in printed
    for model, kind in ((trained / "model", "trainable"), (tmp_path / "packed", "packed")):
        code, printed, _ = hexad("eval", model, texts, "--held-out", "--context", 32, "--json")
        assert code == 0
        found = json.loads(printed)
        assert (found["kind"], found["layers"], found["w_bits"]) == (kind, 7, 2)
        assert found["nats_per_byte"] == pytest.approx(report["nats_per_byte"], abs=1e-4)
    code, printed, _ = hexad("eval", tmp_path / "packed", texts, "--context", 32)
    assert "(packed, 7 layers of 2 bits)" in printed


def test_a_run_that_stops_goes_on_to_the_same_end(hexad, texts, trained, tmp_path):
    command = ("train", texts, "--bits", 2, "--steps", 30, *SMALL, "--checkpoint-every", 10, "--json")
    code, whole, _ = hexad(*command, "--out", tmp_path / "whole")
    assert code == 0
    checkpoints = tmp_path / "part" / "checkpoints"
    checkpoints.mkdir(parents=True)
    shutil.copy(tmp_path / "whole" / "checkpoints" / "step-000000020.safetensors", checkpoints)
    code, part, _ = hexad(*command, "--out", tmp_path / "part")
    assert code == 0
    assert json.loads(part)["train_losses"] == json.loads(whole)["train_losses"]
    assert json.loads(part)["test_loss"] == json.loads(whole)["test_loss"]
    code, _, error = hexad(*command, "--out", tmp_path / "part", "--lr", 0.001)
    assert code == 2
    assert "run with other settings" in error


def test_a_model_of_ones_own(hexad, texts, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["[UNK]", *("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog")]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path / "own")
    config = LlamaConfig(
        vocab_size=9, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "own")
    command = ("train", texts, "--model", tmp_path / "own", "--out", tmp_path / "run", "--steps", 3)
    code, printed, _ = hexad(*command, "--w-bits", "ternary", "--a-bits", "none", "--context", 16, "--json")
    assert code == 0
    report = json.loads(printed)
    assert report["config"]["a_bits"] is None
    # Nine words of 44 bytes.
    assert report["nats_per_byte"] == pytest.approx(report["test_loss"] * 9 / 44, rel=1e-3)
    assert (tmp_path / "run" / "model" / "tokenizer.json").is_file()
    code, printed, _ = hexad("eval", tmp_path / "run" / "model", texts, "--context", 16, "--json")
    assert code == 0
    assert json.loads(printed)["w_bits"] == "ternary"


def test_full_precision_is_a_baseline(hexad, texts, tmp_path):
    code, _, _ = hexad("train", texts, "--out", tmp_path, "--bits", "none", "--steps", 2, *SMALL)
    assert code == 0
    code, _, error = hexad("export", tmp_path / "model", "--out", tmp_path / "packed")
    assert code == 2
    assert "is full precision; export takes one" in error
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("train", "{texts}", "--bits", "9"), "--bits is '9'; give 1 to 8, ternary, fp4, or none"),
        (("train", "{texts}", "--bits", "four"), "--bits is 'four'"),
        (("train", "{texts}", "--bits", "none", "--a-bits", "4"), "rounded together with weights"),
        (("train", "{texts}", "--steps", "0"), "--steps is 0"),
        (("train", "{texts}", "--lr", "-1"), "--lr is -1"),
        (("train", "{texts}", "--context", "5000"), "tokens are left to test on"),
        (("train", "{texts}", "--hidden", "30"), "hidden is 30; it must be a multiple of"),
        (("train", "{texts}", "--model", "{none}"), "model folder .* does not exist"),
        (("train", "{texts}", "--model", "{texts}"), "holds no config.json"),
        (("train", "{texts}", "--model", "{texts}", "--layers", "2"), "leave out --layers"),
        (
            (
                "train",
                "{none}",
            ),
            "text folder .* does not exist",
        ),
        (
            (
                "train",
                "{empty}",
            ),
            r"holds no \.txt file",
        ),
    ],
)
def test_train_refuses_before_it_writes(hexad, texts, tmp_path, arguments, text):
    (tmp_path / "empty").mkdir()
    places = {"texts": texts, "none": tmp_path / "none", "empty": tmp_path / "empty"}
    out = tmp_path / "run"
    code, _, error = hexad(*(word.format(**places) for word in arguments), "--out", out)
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert re.search(text, error)
    assert not out.exists()


def test_a_missing_package_is_named(hexad, texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    monkeypatch.delitem(sys.modules, "hexad.core.training", raising=False)
    code, _, error = hexad("train", texts, "--out", tmp_path / "run")
    assert code == 2
    assert "'lightning_fabric'" in error
    assert 'pip install "hexad-llm-efficiency[quest]"' in error
    assert not (tmp_path / "run").exists()


def test_export_and_eval_refuse(hexad, trained, texts, tmp_path):
    for arguments, text in (
        (("export", trained, "--out", tmp_path / "p"), "did you mean"),
        (("export", trained / "model", "--out", trained / "model"), "is the model itself"),
        (("export", trained / "model", "--out", texts), "is not empty"),
        (("eval", trained / "model", tmp_path / "none"), "does not exist"),
        (("eval", trained / "model", texts, "--context", 33), "this model has 32 positions"),
        (("eval", trained / "model", texts, "--windows", 0), "--windows is 0"),
        (("eval", trained / "model", texts, "--device", "tpu9"), "device 'tpu9' cannot be used"),
    ):
        code, _, error = hexad(*arguments)
        assert code == 2, error
        assert text in error
    assert not (tmp_path / "p").exists()


def test_help_teaches(hexad):
    for command in ("train", "export", "eval"):
        code, printed, _ = hexad(command, "--help")
        assert code == 0
        assert f"hexad llm-efficiency quest {command}" in " ".join(printed.split())


def test_another_run_is_not_gone_on_with(hexad, texts, tmp_path):
    copy, out = tmp_path / "texts", tmp_path / "run"
    shutil.copytree(texts, copy)
    command = ("train", copy, "--out", out, "--steps", 2, *SMALL)
    assert hexad(*command, "--bits", 2)[0] == 0
    report = (out / "report.json").read_bytes()
    for changed, text in (
        (("--bits", 1), "--w-bits: 2 -> 1; --a-bits: 2 -> 1"),
        (("--bits", 2, "--lr", 0.01), "--lr: 0.003 -> 0.01"),
        (("--bits", 2, "--steps", 3), "--steps: 2 -> 3"),
    ):
        code, _, error = hexad(*command, *changed)
        assert code == 2
        assert f"belongs to a run with other settings ({text}); name another folder" in error
    for path in copy.iterdir():
        path.write_text(path.read_text().upper())  # as many windows as before
    code, _, error = hexad(*command, "--bits", 2)
    assert code == 2
    assert "other settings (texts: " in error
    assert (out / "report.json").read_bytes() == report


def test_suffixes_in_capitals_and_texts_of_one_letter(hexad, tmp_path):
    (tmp_path / "A.TXT").write_text("a" * 2000)
    code, printed, _ = hexad("train", tmp_path, "--out", tmp_path / "run", "--steps", 2, *SMALL, "--json")
    assert code == 0
    assert json.loads(printed)["unigram_nats_per_byte"] == 0
    assert "-" not in str(json.loads(printed)["unigram_nats_per_byte"])


def test_errors_come_before_the_slow_imports():
    script = (
        "import sys; from hexad.core import cli\n"
        "sys.argv = ['hexad', 'llm-efficiency', 'quest', *sys.argv[1:]]\n"
        "try: cli.main()\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)"
    )
    for arguments in (("train", "no-such"), ("eval", "no-such", "."), ("export", "no-such")):
        out = () if arguments[0] == "eval" else ("--out", "x")
        command = [sys.executable, "-c", script, *arguments, *out]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["2", "False"], done.stderr
        assert "no-such does not exist" in done.stderr


def test_a_trained_model_is_trained_on(hexad, trained, texts, tmp_path):
    command = ("train", texts, "--model", trained / "model", "--steps", 2, "--context", 32, "--json")
    code, printed, _ = hexad(*command, "--out", tmp_path / "on")
    assert code == 0
    assert json.loads(printed)["config"]["w_bits"] == 2
    for bits in ("none", "2"):
        code, _, error = hexad(*command, "--out", tmp_path / "other", "--bits", bits)
        assert code == 2
        assert "is trained with 2 and 2 bits already; leave out --bits" in error
    assert hexad("export", trained / "model", "--out", tmp_path / "packed")[0] == 0
    packed = ("--model", tmp_path / "packed", "--context", 32)
    code, _, error = hexad("train", texts, *packed, "--out", tmp_path / "other")
    assert code == 2
    assert "is packed; train goes on with trainable ones alone" in error
    assert not (tmp_path / "other").exists()


def test_half_precision_folders_are_trained_in_float32(hexad, trained, texts, tmp_path):
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "half")
    command = ("train", texts, "--model", tmp_path / "half", "--out", tmp_path / "run", "--steps", 2)
    assert hexad(*command, "--lr", 1e-5, "--context", 32, "--skip", "lm_head,embed,mlp")[0] == 0
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("half", "run/model"))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert after[name].dtype == torch.float32
    assert (after[name] != before[name].float()).float().mean() > 0.8
    assert json.loads((tmp_path / "run" / "report.json").read_text())["config"]["skip"][-1] == "mlp"
