"""The bidirectional mixer against an independent Mamba, its symmetries and its initialisations."""

import math

import pytest
import torch
from mambapy.mamba import MambaBlock, MambaConfig
from torch import nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba import VimBlock, VimMixer


@pytest.fixture
def tokens():
    return torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))


def make(**options):
    torch.manual_seed(0)
    return VimMixer(32, d_state=4, **options)


def independent(mixer, suffix):
    """mambapy's one-directional block with the weights of one direction."""
    peer = MambaBlock(MambaConfig(d_model=32, n_layers=1, d_state=4, pscan=False))
    names = {"A_log": "A_log" if not suffix else "A_b_log", "D": f"D{suffix}"}
    weights = {name: mixer.get_parameter(own) for name, own in names.items()}
    for layer in ("conv1d", "x_proj", "dt_proj"):
        for name, value in mixer.get_submodule(layer + suffix).named_parameters():
            weights[f"{layer}.{name}"] = value
    for layer in ("in_proj", "out_proj"):
        weights[f"{layer}.weight"] = mixer.get_submodule(layer).weight
    peer.load_state_dict(weights)
    return peer


def test_it_is_the_mean_of_two_independent_mambas(tokens):
    mixer = make()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # so that A and D of the directions differ
    ahead, back = independent(mixer, ""), independent(mixer, "_b")
    expected = (ahead(tokens) + back(tokens.flip(1)).flip(1)) / 2
    torch.testing.assert_close(mixer(tokens), expected, atol=1e-5, rtol=1e-4)
    # A mixer that added the directions, or shared weights between them, would be far off.
    assert (ahead(tokens) - back(tokens.flip(1)).flip(1)).abs().mean() > 1e-2


def test_gradients_are_those_of_the_independent_mambas(tokens):
    mixer = make()
    ahead, back = independent(mixer, ""), independent(mixer, "_b")
    weights = torch.randn_like(tokens)
    (mixer(tokens) * weights).sum().backward()
    ((ahead(tokens) + back(tokens.flip(1)).flip(1)) / 2 * weights).sum().backward()
    pairs = {"conv1d.weight": "conv1d_b.weight", "dt_proj.bias": "dt_proj_b.bias", "A_log": "A_b_log"}
    for name, other in pairs.items():
        for own, peer in ((name, ahead), (other, back)):
            wanted = peer.get_parameter(name).grad
            torch.testing.assert_close(mixer.get_parameter(own).grad, wanted, atol=1e-4, rtol=1e-3)
    both = ahead.in_proj.weight.grad + back.in_proj.weight.grad
    torch.testing.assert_close(mixer.in_proj.weight.grad, both, atol=1e-4, rtol=1e-3)


def test_tied_directions_reverse_with_their_input(tokens):
    mixer = make()
    with torch.no_grad():
        for layer in ("conv1d", "x_proj", "dt_proj"):
            mixer.get_submodule(f"{layer}_b").load_state_dict(mixer.get_submodule(layer).state_dict())
        mixer.A_b_log.copy_(mixer.A_log)
        mixer.D_b.copy_(mixer.D)
    # 1e-6: products of matrices may sum the tokens of a reversed batch in other blocks.
    torch.testing.assert_close(mixer(tokens.flip(1)), mixer(tokens).flip(1), atol=1e-6, rtol=0)
    assert (make()(tokens.flip(1)) - make()(tokens).flip(1)).abs().max() > 1e-3  # untied they do not


def test_every_token_sees_every_other(tokens):
    mixer = make()
    for token in (0, 10):
        x = tokens.clone().requires_grad_()
        mixer(x)[:, token].sum().backward()
        assert (x.grad.abs().sum((0, 2)) > 0).all()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_sequences_shorter_than_the_convolution(length, tokens):
    mixer = make()
    short = tokens[:, :length]
    expected = (independent(mixer, "")(short) + independent(mixer, "_b")(short.flip(1)).flip(1)) / 2
    torch.testing.assert_close(mixer(short), expected, atol=1e-5, rtol=1e-4)


def test_initialisations():
    inner, rank = 256, 8
    torch.manual_seed(0)
    own = VimMixer(128)
    assert torch.allclose(own.A_log.exp(), torch.arange(1.0, 17.0).expand(inner, 16))
    for projection in (own.dt_proj, own.dt_proj_b):
        dt = functional.softplus(projection.bias)
        assert dt.min() >= 1e-3 * 0.999
        assert dt.max() <= 0.1 * 1.001
        # log dt is uniform: its mean is that of the logarithms of 0.001 and 0.1.
        assert dt.log().mean().item() == pytest.approx(
            math.log(0.01), abs=4 * math.log(100) / 12**0.5 / inner**0.5
        )
        assert projection.weight.abs().max() <= rank**-0.5
        assert projection.weight.std().item() == pytest.approx(rank**-0.5 / 3**0.5, rel=0.05)
    official = VimMixer(128, init="official")
    for projection in (official.dt_proj, official.dt_proj_b):
        assert not projection.bias.any()  # the step starts at softplus(0) = 0.69
        assert projection.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert official.in_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    reg = VimMixer(128, init="official-reg")
    assert reg.dt_proj.bias.all()
    assert not reg.dt_proj_b.bias.any()
    assert reg.dt_proj_b.weight.std().item() == pytest.approx(
        rank**-0.5 / 3**0.5, rel=0.05
    )  # torch's default
    with pytest.raises(InputError, match="unknown init 'xavier'"):
        VimMixer(8, init="xavier")


def test_a_block_adds_normalises_and_mixes(tokens):
    torch.manual_seed(0)
    block = VimBlock(32, d_state=4)
    residual = torch.randn_like(tokens)
    hidden, total = block(tokens, residual)
    assert torch.equal(total, residual + tokens)
    scaled = total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * block.norm.weight
    torch.testing.assert_close(hidden, block.mixer(scaled), atol=1e-6, rtol=1e-5)
    first, total = block(tokens)
    assert total is tokens
    assert first.shape == tokens.shape
    assert isinstance(VimBlock(8, norm="layer").norm, nn.LayerNorm)


def test_the_residual_stays_in_float32_under_autocast(tokens):
    block = VimBlock(32, d_state=4)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, residual = block(tokens.bfloat16(), tokens.bfloat16())
    assert hidden.dtype == torch.bfloat16
    assert residual.dtype == torch.float32
    exact = block(tokens.bfloat16().float(), tokens.bfloat16().float())[0]
    # bfloat16 has 8 bits; products of it are good to a few per cent of the output's size.
    assert (hidden - exact).abs().max() < 0.05 * exact.abs().max()


def test_stochastic_depth_drops_whole_samples():
    torch.manual_seed(0)
    block = VimBlock(8, d_state=2, drop_path=0.5).train()
    hidden, residual = torch.ones(400, 2, 8), torch.zeros(400, 2, 8)
    total = block(hidden, residual)[1]
    kept = total[:, 0, 0] > 0
    assert torch.equal(total, torch.where(kept[:, None, None], 2.0, 0.0).expand_as(total))
    assert abs(kept.float().mean() - 0.5) < 4 * 0.5 / 20
    assert torch.equal(block.eval()(hidden, residual)[1], hidden)


def test_bad_tokens_are_refused(tokens):
    with pytest.raises(InputError, match="no tokens"):
        make()(tokens[:, :0])
    broken = tokens.clone()
    broken[0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        make()(broken)
    with pytest.raises(InputError, match=r"residual of shape \(2, 10, 32\)"):
        VimBlock(32)(tokens, tokens[:, :10])
    with pytest.raises(InputError, match="d_state is 0"):
        VimMixer(8, d_state=0)
