"""`QuestLinear`: forward, backward, and what it must not do."""

import pytest
import torch
from scipy.linalg import hadamard
from torch import nn

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest import QuestConfig, QuestLinear, fwht, quantize
from hexad.llm_efficiency.quest.hadamard import block_for
from hexad.llm_efficiency.quest.layer import without_rounding

H128 = torch.from_numpy(hadamard(128)).double() / 128**0.5


def make(config, k=128, m=48, *, seed=0, bias=True, dtype=torch.float32):
    torch.manual_seed(seed)
    linear = nn.Linear(k, m, bias=bias, dtype=dtype)
    x = torch.randn(20, k, dtype=dtype)
    x[:, :4] *= 8  # outliers, which the transform spreads
    return linear, QuestLinear.from_linear(linear, config), x


def test_the_transform_is_scipys_and_its_own_inverse():
    x = torch.randn(9, 384, generator=torch.Generator().manual_seed(0))
    expected = (x.double().reshape(9, 3, 128) @ H128).reshape(9, 384)
    assert float((fwht(x).double() - expected).abs().max()) < 1e-6
    torch.testing.assert_close(fwht(fwht(x)), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(fwht(x).square().mean(), x.square().mean(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("k", "block"), [(128, 128), (384, 128), (512, 128), (192, 64), (96, 32), (6, 2)])
def test_the_block_is_the_largest_power_of_two_that_divides(k, block):
    assert block_for(k) == block


@pytest.mark.parametrize("bias", [True, False])
def test_sixteen_bits_without_mask_are_a_linear_layer(bias):
    linear, layer, x = make(QuestConfig(16, 16, trust="none"), bias=bias)
    x.requires_grad_()
    torch.testing.assert_close(layer(x), linear(x), rtol=0, atol=1e-3)
    ours = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    theirs = torch.autograd.grad(linear(x).square().sum(), [x, linear.weight])
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-3


@pytest.mark.parametrize(("w_bits", "a_bits"), [(4, 4), (2, 2), (1, 1), ("ternary", "fp4"), (3, None)])
def test_both_operands_are_transformed_and_rounded(w_bits, a_bits):
    linear, layer, x = make(QuestConfig(w_bits, a_bits), dtype=torch.float64)
    w_q = quantize(linear.weight.detach() @ H128, w_bits).values
    x_q = x @ H128 if a_bits is None else quantize(x @ H128, a_bits).values
    torch.testing.assert_close(layer(x), x_q @ w_q.T + linear.bias, rtol=1e-9, atol=1e-9)
    # Rounding outside of the Hadamard domain, or of the weights alone, is something else by far.
    plain = quantize(linear.weight.detach(), w_bits).values
    assert float((layer(x).detach() - x @ plain.T - linear.bias.detach()).abs().max()) > 0.05


@pytest.mark.parametrize(
    "config", [QuestConfig(2, 2), QuestConfig(1, 1), QuestConfig(4, None), QuestConfig(2, 2, trust="none")]
)
def test_the_backward_is_the_papers_formula(config):
    _, layer, x = make(config, dtype=torch.float64)
    x.requires_grad_()
    g_y = torch.randn(20, 48, dtype=torch.float64)
    settings = {"trust": config.trust}
    w_q, _, _, m_w = quantize(layer.weight @ H128, config.w_bits, **settings)
    if config.a_bits is None:
        x_q, m_x = x.detach() @ H128, torch.ones(20, 128)
    else:
        x_q, _, _, m_x = quantize(x @ H128, config.a_bits, **settings)
    g_x, g_w = torch.autograd.grad(layer(x), [x, layer.weight], g_y)
    torch.testing.assert_close(g_x, (m_x * (g_y @ w_q)) @ H128.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(g_w, (m_w * (g_y.T @ x_q)) @ H128.T, rtol=1e-9, atol=1e-9)
    if config.trust == "default":
        # Masking in the original domain is another gradient.
        wrong = m_w * ((g_y.T @ x_q) @ H128.T)
        assert float((g_w - wrong).norm() / g_w.norm()) > 0.1


def test_the_backward_is_autograd_of_a_surrogate_with_fixed_mask_and_error():
    _, layer, x = make(QuestConfig(2, 2), dtype=torch.float64)
    x.requires_grad_()
    weight = layer.weight.detach().clone().requires_grad_()

    def surrogate(v):
        v_h = v @ H128
        v_q, _, _, mask = quantize(v_h, 2)
        # out = M v_h + stopgrad(v_q - M v_h): no gradient flows through the scale.
        return mask * v_h + (v_q - mask * v_h).detach()

    ours = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    expected = surrogate(x) @ surrogate(weight).T + layer.bias
    theirs = torch.autograd.grad(expected.square().sum(), [x, weight])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_no_gradient_flows_through_the_scale():
    # Were it to, scaling a row would change y, and the gradient along the row itself would not be this.
    _, layer, x = make(QuestConfig(2, 2, trust="none"), dtype=torch.float64)
    g_y = torch.randn(20, 48, dtype=torch.float64)
    (g_w,) = torch.autograd.grad(layer(x), [layer.weight], g_y)
    x_q = quantize(x @ H128, 2).values
    along = (g_w * layer.weight.detach()).sum(-1)
    straight = ((g_y.T @ x_q) * (layer.weight.detach() @ H128)).sum(-1)
    torch.testing.assert_close(along, straight, rtol=1e-9, atol=1e-9)


def test_evaluation_rounds_as_training_does():
    _, layer, x = make(QuestConfig(2, 2))
    trained = layer.train()(x)
    assert torch.equal(layer.eval()(x), trained)
    with torch.no_grad():
        assert torch.equal(layer(x), trained)


def test_activations_are_rounded_a_token_at_a_time():
    _, layer, x = make(QuestConfig(2, 2))
    whole = layer(x)
    scaled = layer(torch.cat([x[:1] * 1000, x[1:]]))
    torch.testing.assert_close(scaled[1:], whole[1:], rtol=1e-5, atol=1e-5)
    # And weights a row: another row's size does not matter.
    with torch.no_grad():
        layer.weight[0] *= 1000
    torch.testing.assert_close(layer(x)[:, 1:], whole[:, 1:], rtol=1e-5, atol=1e-5)


def test_shapes_and_sharing():
    linear, layer, _ = make(QuestConfig())
    assert layer.weight is linear.weight
    assert layer.bias is linear.bias
    x = torch.randn(2, 3, 5, 128)
    assert layer(x).shape == (2, 3, 5, 48)
    torch.testing.assert_close(layer(x[1, 2]), layer(x)[1, 2])
    assert layer(torch.randn(0, 128)).shape == (0, 48)
    assert "weights=4, activations=4, block=128" in repr(layer)


def test_autocast_keeps_scales_in_float32():
    _, layer, x = make(QuestConfig(4, 4))
    x.requires_grad_()
    full = layer(x)
    g_full = torch.autograd.grad(full.square().sum(), [x, layer.weight])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(x)
    assert low.dtype == torch.bfloat16
    # Levels are exact in bfloat16, so what differs is the rounding of the sum alone: half a unit in the
    # last of 8 bits. Codes that change would cost a step, a tenth.
    torch.testing.assert_close(low.float(), full, rtol=2**-7, atol=2**-6)
    g_low = torch.autograd.grad(low.float().square().sum(), [x, layer.weight])
    for one, other in zip(g_low, g_full, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.02


def test_bfloat16_weights():
    _, layer, x = make(QuestConfig(4, 4))
    full, layer = layer(x.bfloat16().float()), layer.bfloat16()
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert float((layer(x.bfloat16()).float() - full).norm() / full.norm()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [QuestConfig(2, 2), QuestConfig("ternary", "fp4"), QuestConfig(4, 4, sparse=True)]
)
def test_it_compiles_whole(config):
    _, layer, x = make(config)
    x.requires_grad_()
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)
    ours = torch.autograd.grad(compiled(x).square().sum(), [x, layer.weight])
    theirs = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_rounding_can_be_left_off_for_a_while():
    linear, layer, x = make(QuestConfig(1, 1))
    rounded = layer(x)
    with without_rounding(layer, weights=True):
        torch.testing.assert_close(layer(x), linear(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(layer(x), rounded)


def test_training_moves_weights_that_are_masked_by_their_decay():
    _, layer, x = make(QuestConfig(1, 1))
    mask = quantize(fwht(layer.weight.detach()), 1).mask
    layer(x).sum().backward()
    in_domain = fwht(layer.weight.grad)
    assert float(in_domain[~mask].abs().max()) < 1e-4 * float(in_domain[mask].abs().max())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: QuestLinear(127, 4), "rows of 127 entries leave a Hadamard block of 1"),
        (lambda: QuestLinear(8, 4, QuestConfig(min_block=16)), "leave a Hadamard block of 8"),
        (lambda: QuestLinear(12, 4, QuestConfig(sparse=True)), "rows of 12 entries cannot be sparse"),
        (lambda: QuestLinear.from_linear(nn.Conv1d(1, 1, 1)), "give an nn.Linear, not Conv1d"),
        (lambda: QuestLinear(128, 4)(torch.tensor(1.0)), r"shape \(\); this layer takes rows of 128"),
        (lambda: QuestLinear(128, 4)(torch.ones(2, 64)), r"shape \(2, 64\); this layer takes rows of 128"),
        (lambda: QuestLinear(128, 4)(torch.ones(2, 128, dtype=torch.int32)), "torch.int32"),
        (lambda: QuestLinear(128, 4)(torch.full((2, 128), float("nan"))), "NaN or infinity"),
        (lambda: QuestLinear(128, 4)(torch.full((2, 128), float("inf"))), "NaN or infinity"),
        (lambda: QuestLinear(128, 4, QuestConfig(4, None))(torch.full((2, 128), float("nan"))), "NaN"),
        (lambda: QuestConfig(9), "w_bits is 9"),
        (lambda: QuestConfig(4, 0), "a_bits is 0"),
        (lambda: QuestConfig(block=96), "block is 96; it must be a power of two"),
        (lambda: QuestConfig(skip="lm_head"), "give parts of module names"),
        (lambda: QuestConfig(skip=("",)), "and not empty"),
        (lambda: QuestConfig(constants="official", w_bits="fp4"), "no constant"),
        (lambda: QuestConfig.from_dict({"wbits": 4}), "no setting 'wbits'; did you mean 'w_bits'"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_settings_survive_json():
    import json

    for config in (
        QuestConfig(1.585, "fp4", trust=1.5, skip=["head"]),
        QuestConfig(2, None, trust=float("inf")),
    ):
        again = QuestConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
        assert again.weight_rule.reach == config.weight_rule.reach
        assert (again.w_bits, again.a_bits, again.skip) == (config.w_bits, config.a_bits, config.skip)


def test_whose_numbers_are_not_finite_is_said():
    layer = QuestLinear(128, 4)
    with pytest.raises(InputError, match=r"the input of a QuestLinear \(128 -> 4\) holds NaN"):
        layer(torch.full((2, 128), float("nan")))
    with torch.no_grad():
        layer.weight[3, 7] = float("inf")
    with pytest.raises(InputError, match=r"the weight of a QuestLinear \(128 -> 4\) holds NaN"):
        layer(torch.ones(2, 128))
