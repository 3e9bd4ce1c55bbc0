"""The small Switch transformer and its ladder: counts, routing, gradients, resumption."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import SwitchArch, ladder
from hexad.llm_efficiency.moe_laws.corpus import load_corpus
from hexad.llm_efficiency.moe_laws.ladder import LadderConfig, evaluate, recorded_run, train_run
from hexad.llm_efficiency.moe_laws.switch import Experts, SwitchConfig, SwitchLM, grouped_matmul

TINY = LadderConfig(widths=(16,), experts=(1, 2), tokens=(5_120, 10_240), batch=8, warmup=2, held_out=2_048)


@pytest.mark.parametrize(("width", "experts"), [(16, 1), (32, 4), (48, 8)])
def test_matrices_are_those_that_are_counted(width, experts):
    model = SwitchLM(SwitchConfig(width, experts))
    arch = SwitchArch(vocab=256, aspect=16)
    counted = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "norm" not in name and "router" not in name
    )
    assert counted == arch.total(width, experts)
    assert SwitchLM(SwitchConfig(width)).config.blocks == width // 16
    dense = sum(p.numel() for n, p in SwitchLM(SwitchConfig(width)).named_parameters() if "norm" not in n)
    assert dense == arch.active(width)


def test_grouped_matmul_is_one_product_an_expert():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    w = torch.randn(4, 3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    ends = [4, 4, 9, 10]  # the second expert has no row
    out = grouped_matmul(x, w, ends)
    owner = torch.tensor([0] * 4 + [2] * 5 + [3])
    assert torch.allclose(out, torch.einsum("rk,rkm->rm", x, w[owner]))
    assert torch.autograd.gradcheck(lambda a, b: grouped_matmul(a, b, ends), (x, w))


def test_each_token_passes_its_most_likely_expert_and_none_is_dropped():
    torch.manual_seed(0)
    layer = Experts(SwitchConfig(16, 4))
    # All but all tokens choose expert 2: a capacity would drop most of them.
    with torch.no_grad():
        layer.router[:, 2] += 0.5
    x = torch.randn(64, 16) + 0.5
    out, balance, z = layer(x)
    shares = (x @ layer.router).softmax(-1)
    gate, chosen = shares.max(-1)
    assert torch.bincount(chosen, minlength=4).max() > 48
    for row in range(64):
        e = chosen[row]
        hidden, value = (x[row] @ layer.rise[e]).chunk(2)
        wanted = gate[row] * ((silu(hidden) * value) @ layer.fall[e])
        assert torch.allclose(out[row], wanted, atol=1e-5)
    f = torch.bincount(chosen, minlength=4) / 64
    assert float(balance.detach()) == pytest.approx(float(4 * (f * shares.mean(0)).sum().detach()), rel=1e-5)
    squares = (x @ layer.router).logsumexp(-1).square()
    assert float(z.detach()) == pytest.approx(float(squares.mean().detach()), rel=1e-5)
    out.sum().backward()
    assert layer.router.grad.abs().sum() > 0, "the router learns through the gate"


def test_one_expert_is_a_dense_layer():
    layer = Experts(SwitchConfig(16, 1))
    x = torch.randn(8, 16)
    out, balance, z = layer(x)
    hidden, value = (x @ layer.rise[0]).chunk(2, dim=-1)
    assert torch.allclose(out, (silu(hidden) * value) @ layer.fall[0], atol=1e-6)
    assert layer.router is None
    assert float(balance.detach()) == float(z) == 0


def test_the_model_is_causal():
    torch.manual_seed(0)
    model = SwitchLM(SwitchConfig(32, 4))
    tokens = torch.randint(256, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 256
    with torch.no_grad():
        first, second = model(tokens)[0], model(changed)[0]
    assert torch.allclose(first[:, :12], second[:, :12], atol=1e-5)
    assert not torch.allclose(first[:, 12:], second[:, 12:], atol=1e-2)


def test_positions_matter():
    model = SwitchLM(SwitchConfig(32))
    tokens = torch.tensor([[5, 9, 7, 7], [9, 5, 7, 7]])
    with torch.no_grad():
        logits = model(tokens)[0]
    assert not torch.allclose(logits[0, 3], logits[1, 3], atol=1e-4)


def test_texts_are_disjoint_and_long():
    corpus = load_corpus()
    assert len(corpus.train) > 4_000_000
    assert len(corpus.train) > 10 * len(corpus.held_out) > 1_000_000
    sample = corpus.held_out[1000:1400].tobytes()
    assert sample not in corpus.train.tobytes()


def test_runs_are_reproducible_and_learn():
    points, again = (train_run(16, 2, 0, TINY) for _ in range(2))
    assert points == again
    assert [point.tokens for point in points] == [5_120, 10_240]
    assert points[1].loss < points[0].loss < np.log(256)
    assert train_run(16, 2, 1, TINY) != points


def test_a_branch_does_not_disturb_its_trunk():
    alone = LadderConfig(**{**TINY.__dict__, "tokens": (10_240,)})
    assert train_run(16, 1, 0, TINY)[1] == train_run(16, 1, 0, alone)[0]


def test_evaluation_is_the_cross_entropy_of_held_out_bytes():
    torch.manual_seed(0)
    model = SwitchLM(SwitchConfig(16))
    with torch.no_grad():
        model.head.zero_()
    assert evaluate(model, TINY) == pytest.approx(np.log(256), rel=1e-6)


def test_finished_runs_are_read_and_not_trained_again(tmp_path, monkeypatch):
    told = []
    points = recorded_run(tmp_path, 16, 2, 0, TINY, lambda share, note: told.append(share))
    assert told[-1] == 1
    monkeypatch.setattr(ladder, "train_run", None)
    assert recorded_run(tmp_path, 16, 2, 0, TINY, lambda share, note: None) == points
    with pytest.raises(InputError, match="other settings"):
        recorded_run(tmp_path, 16, 2, 1, TINY, lambda share, note: None)
    path = tmp_path / "d16-e2.json"
    assert json.loads(path.read_text())["settings"]["tokens"] == [5_120, 10_240]
    path.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        recorded_run(tmp_path, 16, 2, 0, TINY, lambda share, note: None)


@pytest.mark.parametrize("given", [{"tokens": (1_000,)}, {"batch": 0}, {"warmup": 0}])
def test_ladders_that_cannot_be(given):
    with pytest.raises(InputError, match=next(iter(given))):
        LadderConfig(**given)


@pytest.mark.parametrize("given", [{"width": 24}, {"width": 16, "experts": 0}, {"width": 32, "aspect": 20}])
def test_models_that_cannot_be(given):
    with pytest.raises(InputError):
        SwitchConfig(**given)
