"""The command line, from `hexad` itself: files in, files out."""

import functools
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from hexad.llm_efficiency.spargeattn import (
    AttentionCall,
    HeadParams,
    load_call,
    load_layers,
    save_call,
    sparge_attention,
)


@pytest.fixture
def hexad(llm_efficiency):
    """Run `hexad llm-efficiency spargeattn ...`; gives (exit code, stdout, stderr)."""
    return functools.partial(llm_efficiency, "spargeattn")


@pytest.fixture
def qkv(make_qkv, tmp_path):
    def make(seed=0, **options):
        path = tmp_path / f"call{seed}.safetensors"
        save_call(AttentionCall(*make_qkv(seed=seed), **options), path)
        return path

    return make


BLOCKS = ("--block-q", 64, "--block-k", 32)


def test_calls_survive_their_files(make_qkv, tmp_path):
    call = AttentionCall(*make_qkv(), is_causal=True, scale=0.1)
    save_call(call, tmp_path / "call.safetensors")
    read = load_call(tmp_path / "call.safetensors")
    assert (read.is_causal, read.scale) == (True, 0.1)
    assert all(torch.equal(getattr(read, name), getattr(call, name)) for name in "qkv")
    save_file({name: getattr(call, name)[0].contiguous() for name in "qkv"}, tmp_path / "plain.safetensors")
    plain = load_call(tmp_path / "plain.safetensors")
    assert (plain.q.shape, plain.is_causal, plain.scale) == (call.q.shape, False, None)


def test_bench_reports_error_sparsity_and_time(hexad, qkv, tmp_path):
    path, out = qkv(), tmp_path / "deep" / "report.json"
    code, printed, _ = hexad("bench", "--qkv", path, "--out", out, "--theta", 0.5, "--tau", 0.6, *BLOCKS)
    assert code == 0
    assert "times as fast as dense attention" in printed
    report = json.loads(out.read_text())
    call = load_call(path)
    params = HeadParams(theta=0.5, tau=0.6, block_q=64, block_k=32)
    output, stats = sparge_attention(call.q, call.k, call.v, params=params, return_stats=True)
    dense = torch.nn.functional.scaled_dot_product_attention(call.q, call.k, call.v)
    error = (output - dense).abs().sum((0, 2, 3)) / dense.abs().sum((0, 2, 3))
    assert report["sparsity"] == pytest.approx(stats.sparsity)
    assert report["backend"] == stats.backend
    assert [head["rel_l1"] for head in report["heads"]] == pytest.approx(error.tolist(), rel=1e-3)
    assert report["sparge_seconds"] > report["prediction_seconds"] > 0
    assert report["speedup"] == pytest.approx(report["dense_seconds"] / report["sparge_seconds"], rel=2)


def test_bench_prints_json_alone(hexad, qkv):
    code, printed, _ = hexad("bench", "--qkv", qkv(is_causal=True), "--rounds", 1, "--json")
    assert code == 0
    assert json.loads(printed)["is_causal"] is True
    code, printed, _ = hexad("bench", "--qkv", qkv(is_causal=True), "--rounds", 1, "--json", "--no-causal")
    assert json.loads(printed)["is_causal"] is False


def test_attend_writes_the_output(hexad, qkv, tmp_path):
    out = tmp_path / "output.safetensors"
    code, printed, _ = hexad("attend", "--qkv", qkv(), "--out", out, "--topk", 0.5, "--theta", "-1", *BLOCKS)
    assert code == 0
    assert "50.0% skipped" in printed
    call = load_call(qkv())
    expected = sparge_attention(
        call.q, call.k, call.v, theta=-1.0, tau=None, topk=0.5, block_q=64, block_k=32
    )
    assert torch.equal(load_file(out)["output"], expected)


def test_tune_then_bench_with_the_tuned_parameters(hexad, qkv, tmp_path):
    out = tmp_path / "params.safetensors"
    files = [item for seed in range(2) for item in ("--qkv", qkv(seed))]
    code, printed, _ = hexad(
        "tune",
        *files,
        "--test",
        qkv(7),
        "--out",
        out,
        "--min-inputs",
        2,
        "--l1",
        0.3,
        "--no-second-filter",
        "--json",
        *BLOCKS,
    )
    assert code == 0
    report = json.loads(printed)
    params = HeadParams.load(out)
    assert params.heads == 2
    assert params.theta.tolist() == [head["theta"] for head in report["heads"]]
    assert params.pv_threshold is None
    assert len(report["tests"]) == 1
    code, printed, _ = hexad("bench", "--qkv", qkv(7), "--params", out, "--rounds", 1, "--json")
    assert [head["rel_l1"] for head in json.loads(printed)["heads"]] == pytest.approx(
        report["tests"][0]["rel_l1"], rel=1e-4
    )


def test_calibrate_a_model_folder(hexad, tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0} | {chr(97 + i): i + 1 for i in range(26)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        tmp_path / "m"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=27,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "m")
    (tmp_path / "text.txt").write_text(" ".join("the quick brown fox".replace(" ", "")) * 50)
    out = tmp_path / "layers.safetensors"
    common = ("calibrate", tmp_path / "m", tmp_path / "text.txt", "--out", out, "--no-second-filter")
    code, printed, errors = hexad(
        *common, "--tokens", 96, "--inputs", 3, "--json", "--block-q", 32, "--block-k", 16
    )
    assert code == 0, errors
    assert sorted(load_layers(out)) == [0, 1]
    assert [row["heads"] for row in json.loads(printed)["layers"]] == [2, 2]
    code, _, errors = hexad(*common, "--tokens", 500)
    assert (code, "takes 256 at most" in errors) == (2, True)
    code, _, errors = hexad(*common, "--tokens", 200, "--inputs", 50)
    assert (code, "fewer than the 50 wanted" in errors) == (2, True)
    weights = tmp_path / "m" / "model.safetensors"
    stored = weights.read_bytes()
    code, _, errors = hexad("calibrate", tmp_path / "m", tmp_path / "text.txt", "--out", weights)
    assert (code, "is a file of the model" in errors) == (2, True)
    assert weights.read_bytes() == stored
    code, _, errors = hexad(*common, tmp_path / "text.txt")
    assert (code, "text.txt twice" in errors) == (2, True)
    code, _, errors = hexad(*common, "--l2", 0.1)
    assert (code, "--l2 bounds the second filter" in errors) == (2, True)
    weights.write_bytes(b"damaged")
    code, _, errors = hexad(*common)
    assert code == 2
    assert "do not load" in errors
    assert len(errors.strip().splitlines()) == 1, errors
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).unlink()
    code, _, errors = hexad(*common)
    assert code == 2
    assert "holds a model but no tokenizer that loads" in errors
    assert "tokenizer.save_pretrained" in errors
    assert len(errors.strip().splitlines()) == 1, errors
    code, _, errors = hexad("calibrate", tmp_path, tmp_path / "text.txt", "--out", out)
    assert (code, "no folder of a transformers model" in errors) == (2, True)


def bad_lines(path, tmp_path):
    save_file({"q": torch.zeros(1, 1, 4, 4)}, tmp_path / "part.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    many = tmp_path / "many.safetensors"
    from hexad.llm_efficiency.spargeattn import save_layers

    save_layers({0: HeadParams(), 1: HeadParams()}, many)
    one = tmp_path / "one.safetensors"
    HeadParams().save(one)
    seven = tmp_path / "seven.safetensors"
    HeadParams(theta=torch.full((7,), 0.5)).save(seven)
    q = torch.zeros(1, 1, 4, 4)
    save_file({"q": q, "k": q.half(), "v": q.clone()}, tmp_path / "mixed.safetensors")
    save_file({"q": q.int(), "k": q.int(), "v": q.int()}, tmp_path / "whole.safetensors")
    save_file({"q": q, "k": q[..., :2].contiguous(), "v": q.clone()}, tmp_path / "narrow.safetensors")
    save_file({"q": q, "k": q.clone(), "v": q.clone()}, tmp_path / "scaled.safetensors", {"scale": "-1"})
    bench = ("bench", "--qkv", path)
    attend = ("attend", "--qkv", path, "--out", tmp_path / "output.safetensors")
    out = tmp_path / "params.safetensors"
    tune = ("tune", "--qkv", path, "--out", out)
    return [
        (("bench", "--qkv", tmp_path / "cal0.safetensors"), "does not exist; did you mean"),
        (("bench", "--qkv", tmp_path / "text.safetensors"), "is no safetensors file"),
        (("bench", "--qkv", tmp_path / "part.safetensors"), "lacks the tensors k, v"),
        ((*bench, "--theta", "1.5"), "theta is 1.5"),
        ((*bench, "--rounds", "0"), "--rounds is 0"),
        ((*bench, "--params", many), "choose one with --layer"),
        ((*bench, "--params", many, "--layer", 4), "not 4"),
        ((*bench, "--params", seven), "seven.safetensors holds parameters of 7 heads, and"),
        ((*attend, "--params", seven), "seven.safetensors holds parameters of 7 heads, and"),
        ((*bench, "--out", tmp_path), "is a folder"),
        ((*bench, "--out", path), "is also an input"),
        ((*bench, "--device", "abacus"), "device 'abacus' cannot be used"),
        (
            (*bench, "--params", one, "--theta", 0.6),
            "holds all thresholds; leave out --theta, or",
        ),
        ((*bench, "--params", one, "--tau", 0.5, "--block-q", 64), "leave out --tau, --block-q, or --params"),
        ((*bench, "--params", one, "--lambda", 5, "--sink"), "leave out --lambda, --sink, or --params"),
        (
            (*bench, "--params", one, "--topk", 0.5, "--block-k", 32),
            "leave out --topk, --block-k, or",
        ),
        ((*bench, "--params", one, "--out", one), "is also an input"),
        ((*bench, "--layer", 0), "--layer chooses from a file of parameters; name one with --params"),
        ((*attend, "--tau", 0.98, "--topk", 0.5), "--tau and --topk are two ways to choose"),
        ((*attend, "--params", one, "--theta", 0.5), "leave out --theta, or --params"),
        ((*attend, "--layer", 1), "--layer chooses from a file"),
        (("bench", "--qkv", tmp_path / "mixed.safetensors"), "mixed.safetensors: q and k must share dtype"),
        (("bench", "--qkv", tmp_path / "whole.safetensors"), "whole.safetensors: q has dtype torch.int32"),
        (
            ("bench", "--qkv", tmp_path / "narrow.safetensors"),
            "narrow.safetensors: q and k must share",
        ),
        (("bench", "--qkv", tmp_path / "scaled.safetensors"), "scaled.safetensors: scale is -1.0"),
        (tune, "fewer than the 5"),
        ((*tune, "--test", path), "never tuned on"),
        ((*tune, "--l1", 0.5), "l2"),
        ((*tune, "--qkv", path.parent / "." / path.name), "twice; inputs that differ are pooled"),
        ((*tune, "--test", one, "--test", one), "twice; once is enough"),
        ((*tune, "--l2", 0.09, "--no-second-filter"), "--l2 bounds the second filter"),
    ]


def test_mistakes_get_one_clear_line(hexad, qkv, tmp_path):
    for arguments, message in bad_lines(qkv(), tmp_path):
        code, printed, errors = hexad(*arguments)
        assert code == 2, arguments
        assert message in errors
        assert len(errors.strip().splitlines()) == 1, errors
        assert printed == ""
    assert not (tmp_path / "params.safetensors").exists()


def test_the_light_face_stays_light():
    """Neither `method.py` nor the package's own name may import torch, numpy or transformers."""
    code = (
        "import sys, hexad.llm_efficiency.spargeattn.method, hexad.llm_efficiency.spargeattn\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'safetensors') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_exported_name_loads():
    import hexad.llm_efficiency.spargeattn as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'sparge'"):
        package.sparge  # noqa: B018


def test_without_transformers_the_function_works_and_the_integration_says_what_to_install():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch, hexad.llm_efficiency.spargeattn as s\n"
        "print(s.sparge_attention(*torch.ones(3, 1, 1, 8, 16)).shape)\n"
        "try:\n    s.register()\nexcept ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torch.Size([1, 1, 8, 16])" in done.stdout, done.stderr
    assert "MissingExtraError" in done.stdout
    assert 'pip install "hexad-llm-efficiency[transformers]"' in done.stdout
