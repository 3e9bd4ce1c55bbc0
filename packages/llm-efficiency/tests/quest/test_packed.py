"""Packed layers and their files."""

import copy
import os
import stat

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import unpack_codes
from hexad.llm_efficiency.quest import (
    PackedLinear,
    QuestConfig,
    QuestLinear,
    convert,
    fwht,
    load_packed,
    prepare,
    quantize,
    save_packed,
)

CONFIGS = [
    QuestConfig(4, 4),
    QuestConfig(1, 1),
    QuestConfig(3, 3),
    QuestConfig(8, 8),
    QuestConfig(4, 8),
    QuestConfig("ternary", "ternary"),
    QuestConfig("fp4", "fp4"),
    QuestConfig(4, 4, sparse=True),
    QuestConfig(2, None),
    QuestConfig(4, 4, block=1),
    QuestConfig(4, 4, constants="official"),
]


def layers(config, k=384, m=40, seed=0):
    torch.manual_seed(seed)
    prepared = QuestLinear(k, m, config)
    return prepared, PackedLinear.from_quest(prepared), torch.randn(33, k)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_it_computes_what_the_trained_layer_did(config):
    prepared, packed, x = layers(config)
    with torch.no_grad():
        expected = prepared(x)
    torch.testing.assert_close(packed(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed(x[0]), expected[0], rtol=1e-5, atol=1e-5)


def test_the_codes_are_those_of_the_weight_in_the_hadamard_domain():
    prepared, packed, _ = layers(QuestConfig(3, 3))
    quantized = quantize(fwht(prepared.weight.detach()), 3)
    assert torch.equal(unpack_codes(packed.codes, 3, 384), quantized.codes)
    assert torch.equal(packed.scale, quantized.scale)


@pytest.mark.parametrize(
    "config", [QuestConfig(4, 4), QuestConfig(1, 1), QuestConfig(4, 4, sparse=True)], ids=str
)
def test_deep_models_agree_to_the_bit(config):
    """A last bit that differs would flip a code in the next layer, and soon nothing would agree any more."""
    torch.manual_seed(0)
    blocks = [(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)) for _ in range(6)]
    model = prepare(nn.Sequential(*(layer for block in blocks for layer in block)), config)
    x = torch.randn(300, 128)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(convert(model)(x), expected)


@pytest.mark.parametrize(("bits", "share"), [(4, 1 / 6), (2, 1 / 12), (1, 1 / 20)])
def test_sizes(bits, share):
    _, packed, _ = layers(QuestConfig(bits, bits), k=128, m=128)
    assert packed.codes.dtype == torch.uint8
    assert packed.codes.shape == (128, 128 * bits // 8)
    assert packed.nbytes == 128 * (16 * bits + 4)
    assert packed.nbytes <= share * 4 * 128 * 128


def test_casting_keeps_the_scales():
    _, packed, x = layers(QuestConfig(4, 4))
    before, scale = packed(x), packed.scale.clone()
    packed.bfloat16()
    assert torch.equal(packed.scale, scale)
    assert packed.scale.dtype == torch.float32
    assert packed.bias.dtype == torch.bfloat16
    assert packed(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(packed(x), before, rtol=0, atol=2e-3)  # the bias alone was rounded
    assert packed.to("meta").scale.dtype == torch.float32
    assert packed.half().scale.dtype == torch.float32


def test_autocast_decides_the_dtype():
    prepared, packed, x = layers(QuestConfig(4, 4))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        low, expected = packed(x), prepared(x)
    assert low.dtype == expected.dtype == torch.bfloat16
    # The same codes, so that only the rounding of the output to 8 bits differs.
    torch.testing.assert_close(low.float(), expected.float(), rtol=2**-7, atol=2**-7)


def test_gradients_are_refused_and_not_lost():
    _, packed, x = layers(QuestConfig(4, 4))
    with pytest.raises(InputError, match="grad"):
        packed(x.requires_grad_())


def test_nan_is_refused():
    _, packed, x = layers(QuestConfig(4, 4))
    x[0, 0] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        packed(x)


def model(config=None, tied=False):
    torch.manual_seed(1)
    net = nn.Sequential()
    net.add_module("up", nn.Linear(64, 128))
    net.add_module("norm", nn.LayerNorm(128))
    net.add_module("down", nn.Linear(128, 64, bias=False))
    net.add_module("lm_head", nn.Linear(64, 8))
    if tied:
        net.add_module("lm_head2", nn.Linear(8, 8, bias=False))
        net.lm_head2.weight = nn.Parameter(net.lm_head.weight.detach()[:, :8].clone())
        net.register_parameter("again", net.lm_head2.weight)
    return net if config is None else prepare(net, config)


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_brings_back_the_model_bit_for_bit(tmp_path, tied):
    config = QuestConfig(3, 2)
    trained = convert(model(config, tied))
    x = torch.randn(5, 64)
    path = save_packed(trained, tmp_path / "new" / "packed.safetensors")
    torch.manual_seed(7)
    for target in (model(tied=tied), model(config, tied), convert(model(config, tied))):
        with torch.no_grad():
            target.norm.weight.fill_(3.0)
        loaded = load_packed(target, path)
        assert isinstance(loaded.up, PackedLinear)
        assert torch.equal(loaded(x), trained(x))
    assert [file.name for file in path.parent.iterdir()] == ["packed.safetensors"]


def test_state_dicts_and_copies():
    trained = convert(model(QuestConfig(4, 4)))
    other = convert(model(QuestConfig(4, 4)))
    with torch.no_grad():
        other.up.scale.zero_()
    x = torch.randn(3, 64)
    other(x)  # what the first call keeps must not outlive the loading
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other(x), trained(x))
    assert torch.equal(copy.deepcopy(trained)(x), trained(x))


def test_codes_with_another_block_are_refused(tmp_path):
    path = save_packed(convert(model(QuestConfig(4, 4))), tmp_path / "packed.safetensors")
    narrow = convert(model(QuestConfig(4, 4, block=32)))
    with pytest.raises(
        InputError, match=r"up: these codes are for another layer \(Hadamard block 64, not 32\)"
    ):
        narrow.load_state_dict(load_file(path))
    with pytest.raises(InputError, match="was packed with block=128; up of the model has 32"):
        load_packed(narrow, path)
    with pytest.raises(InputError, match="was packed with block=128; up of the model has 32"):
        load_packed(model(QuestConfig(4, 4, block=32)), path)
    with pytest.raises(InputError, match=r"bits 4, not 2"):
        convert(model(QuestConfig(2, 4))).load_state_dict(load_file(path))


def test_files_that_cannot_be_loaded(tmp_path):
    path = save_packed(convert(model(QuestConfig(4, 4))), tmp_path / "packed.safetensors")
    with pytest.raises(InputError, match="does not exist; did you mean"):
        load_packed(model(), tmp_path / "packd.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(InputError, match="is no safetensors file"):
        load_packed(model(), tmp_path / "text.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(InputError, match="is no packed model"):
        load_packed(model(), tmp_path / "plain.safetensors")

    plain = model()
    plain.up = nn.Linear(64, 64)
    before = list(plain.modules())
    with pytest.raises(InputError, match=r"up of .* is 64 -> 128; the model has 64 -> 64"):
        load_packed(plain, path)
    assert list(plain.modules()) == before, "nothing was changed"
    with pytest.raises(InputError, match="'up', which is no linear layer of this model"):
        load_packed(nn.Sequential(nn.Linear(64, 128)), path)
    longer = model()
    longer.add_module("more", nn.Linear(8, 8))
    with pytest.raises(InputError, match=r"of another model: the file lacks 'more\.bias'"):
        load_packed(longer, path)
    with pytest.raises(InputError, match="holds no packed layer; call convert"):
        save_packed(model(QuestConfig()), tmp_path / "x.safetensors")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(InputError, match="cannot be written"):
        save_packed(convert(model(QuestConfig())), tmp_path / "packed.safetensors")


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (QuestConfig(3, 4), QuestConfig(2, 4, sparse=True), "w_bits 2, not 3; sparse True, not False"),
        (QuestConfig(4, 4), QuestConfig(4, 2), "a_bits 2, not 4"),
        (QuestConfig(4, 4), QuestConfig(4, None), "a_bits None, not 4"),
        (QuestConfig(4, 4), QuestConfig(4, 4, constants="official"), "constants official, not exact"),
        (QuestConfig("ternary", 4), QuestConfig(2, 4), "w_bits 2, not ternary"),
        (QuestConfig(4, "fp4"), QuestConfig("fp4", "fp4"), "w_bits fp4, not 4"),
    ],
)
def test_codes_of_other_settings_are_refused(ours, theirs, text):
    state = convert(model(theirs)).state_dict()
    with pytest.raises(InputError, match=rf"up: these codes are for another layer \({text}\)"):
        convert(model(ours)).load_state_dict(state)


def test_damaged_scales_are_refused():
    packed = convert(model(QuestConfig(4, 4)))
    for value, text in ((-1.0, "positive and finite"), (float("nan"), "positive and finite")):
        state = {name: tensor.clone() for name, tensor in packed.state_dict().items()}
        state["up.scale"][3] = value
        with pytest.raises(InputError, match=f"up: its scales must be {text}"):
            packed.load_state_dict(state)
    state["up.scale"] = state["up.scale"].half()
    with pytest.raises(InputError, match=r"up: its scales are torch.float16, not float32"):
        packed.load_state_dict(state)


def test_files_of_other_shapes_change_nothing(tmp_path):
    def embedded(rows):
        return nn.Sequential(nn.Embedding(rows, 64), nn.Linear(64, 128))

    path = save_packed(convert(prepare(embedded(10))), tmp_path / "packed.safetensors")
    other = embedded(11)
    before = list(other.modules())
    with pytest.raises(InputError, match=r"0\.weight has shape \(10, 64\) there, \(11, 64\) in the model"):
        load_packed(other, path)
    assert list(other.modules()) == before
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    save_file(tensors | {"1.codes": tensors["1.codes"][:, 1:].contiguous()}, path, metadata=metadata)
    with pytest.raises(InputError, match=r"1\.codes has shape \(128, 31\) there, \(128, 32\) in the model"):
        load_packed(embedded(10), path)
    for spoilt in ({"layers": "[]"}, {"aliases": "[]"}, {"layers": '{"1": {}}'}):
        save_file(tensors, path, metadata=metadata | spoilt)
        with pytest.raises(InputError, match="is damaged"):
            load_packed(embedded(10), path)
    with pytest.raises(InputError, match=r"model must be an nn.Module, not NoneType"):
        load_packed(None, path)


def test_the_weight_has_a_dtype_and_no_numbers():
    packed = convert(model(QuestConfig(4, 4)))
    assert packed.up.weight.shape == (128, 64)
    assert packed.up.weight.dtype == torch.float32
    assert packed.bfloat16().up.weight.dtype == torch.bfloat16
    with pytest.raises(AttributeError, match=r"no weight to read or write \(weight\.data\)"):
        packed.up.weight.data += 1  # as peft merges


def test_a_model_just_converted_exports_and_traces_whole():
    packed = convert(model(QuestConfig(4, 4)))
    x = torch.randn(3, 64)
    program = torch.export.export(packed, (x,))
    traced = torch.compile(packed, backend="eager", fullgraph=True)(x)
    assert torch.equal(traced, packed(x))
    assert torch.equal(program.module()(x), packed(x))
