"""A client's round in torch: the identity of the control variate, clipping, SAM, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hexad.core.errors import InputError
from hexad.federated.fedswa import (
    CyclicSGD,
    LocalConfig,
    cyclic_lrs,
    full_gradient,
    local_train,
    next_variate,
)
from hexad.federated.fedswa.local import cross_entropy
from hexad.federated.fedswa.variates import zeros_like


def make_model(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def make_loader(dtype=torch.float64, batches=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, 5, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(3, (6,), generator=generator),
        )
        for _ in range(batches)
    ]


def named(model):
    return dict(model.named_parameters())


def random_like(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) * 0.1
        for name, p in named(model).items()
    }


def by_hand(model, loader, config, correction):
    """The round with autograd and dictionaries alone; returns the gradients of each step."""
    taken = []
    for k in range(config.local_steps):
        rate = config.lr * (1 - k / config.local_steps) + k / config.local_steps * config.rho * config.lr
        value = cross_entropy(model, loader[k % len(loader)])
        gradients = dict(zip(named(model), torch.autograd.grad(value, list(model.parameters())), strict=True))
        with torch.no_grad():
            g = {name: gradients[name] + config.weight_decay * p for name, p in named(model).items()}
            norm = torch.sqrt(sum((part**2).sum() for part in g.values()))
            scale = 1.0 if config.clip_norm is None else min(1.0, config.clip_norm / float(norm))
            g = {name: part * scale for name, part in g.items()}
            for name, p in named(model).items():
                p -= rate * (g[name] + (correction[name] if correction else 0))
        taken.append((rate, g))
    return taken


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_a_round_is_the_one_by_hand(corrected, clip_norm):
    config = LocalConfig(0.3, 7, 0.2, weight_decay=0.01, clip_norm=clip_norm)
    ours, theirs, loader = make_model(), make_model(), make_loader()
    correction = random_like(ours, 5) if corrected else None
    result = local_train(ours, loader, config, correction)
    taken = by_hand(theirs, loader, config, correction)
    for name, p in named(theirs).items():
        torch.testing.assert_close(named(ours)[name], p, rtol=0, atol=1e-13)
        torch.testing.assert_close(
            result.delta[name], p.detach() - named(make_model())[name].detach(), rtol=0, atol=1e-13
        )
    assert result.steps == 7
    assert result.examples == 42
    assert result.lr_sum == pytest.approx(sum(rate for rate, _ in taken), rel=1e-14)
    if clip_norm:
        norms = [float(sum((part**2).sum() for part in g.values()) ** 0.5) for _, g in taken]
        assert max(norms) == pytest.approx(clip_norm)  # the test would not see the order of things otherwise


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_the_control_variate_is_the_mean_of_the_gradients(dtype, tolerance):
    """c_i+ = sum eta_k g_k / sum eta_k: an identity of plain SGD, whatever c_i and m are."""
    config = LocalConfig(0.2, 9, 0.1, weight_decay=1e-3, clip_norm=None)
    model, loader = make_model(dtype), make_loader(dtype)
    m, c = random_like(model, 2), random_like(model, 3)
    shadow = make_model(dtype)
    result = local_train(model, loader, config, {name: m[name] - c[name] for name in m})
    taken = by_hand(shadow, loader, config, {name: m[name] - c[name] for name in m})
    fresh = next_variate(c, m, result.delta, result.lr_sum)
    total = sum(rate for rate, _ in taken)
    for name in m:
        mean = sum(rate * g[name].double() for rate, g in taken) / total
        torch.testing.assert_close(fresh[name].double(), mean, rtol=0, atol=tolerance)


def test_the_optimizer_in_a_loop_of_one_s_own_is_local_train():
    config = LocalConfig(0.1, 8, 0.1)
    ours, theirs, loader = make_model(), make_model(), make_loader()
    correction = random_like(ours, 4)
    result = local_train(ours, loader, config, correction)
    optimizer = CyclicSGD(theirs.named_parameters(), config)
    optimizer.set_correction(correction)
    rates = []
    for batch in loader * 2:
        optimizer.zero_grad()
        cross_entropy(theirs, batch).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == cyclic_lrs(0.1, 8, 0.1)
    assert optimizer.lr_sum == result.lr_sum
    for name, p in named(ours).items():
        assert torch.equal(p, named(theirs)[name])
    with pytest.raises(InputError, match="step 9 of a round of 8"):
        optimizer.step()


def test_a_closure_works_as_in_torch():
    model, batch = make_model(), make_loader()[0]
    optimizer = CyclicSGD(model.named_parameters(), LocalConfig(0.1, 2))

    def closure():
        optimizer.zero_grad()
        value = cross_entropy(model, batch)
        value.backward()
        return value

    assert optimizer.step(closure) > cross_entropy(model, batch)


def test_without_cycle_it_is_torch_s_sgd():
    config = LocalConfig(0.1, 5, 1.0, weight_decay=0.02, clip_norm=None)
    ours, theirs, loader = make_model(), make_model(), make_loader()
    local_train(ours, loader, config)
    sgd = torch.optim.SGD(theirs.parameters(), 0.1, weight_decay=0.02)
    for batch in (loader * 2)[:5]:
        sgd.zero_grad()
        cross_entropy(theirs, batch).backward()
        sgd.step()
    for name, p in named(ours).items():
        torch.testing.assert_close(p, named(theirs)[name], rtol=0, atol=1e-15)


def test_the_correction_reaches_the_gradient():
    """The authors' SCAFFOLD adds a float to the loss, which moves nothing; ours moves by -eta times it."""
    model, loader = make_model(), make_loader()
    start = copy.deepcopy(model.state_dict())
    config = LocalConfig(0.1, 1, 1.0, 0.0, None)
    free = local_train(model, loader, config).delta
    model.load_state_dict(start)
    correction = random_like(model, 7)
    held = local_train(model, loader, config, correction).delta
    for name in correction:
        torch.testing.assert_close(held[name] - free[name], -0.1 * correction[name], rtol=0, atol=1e-14)


def test_a_parameter_without_gradient_keeps_the_identity():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(5, 3, dtype=torch.float64)
            self.idle = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

        def forward(self, x):
            return self.used(x)

    config = LocalConfig(0.1, 3, 0.5, 0.0, None)
    model = Idle()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    m = {name: torch.full_like(named(model)[name], 0.3) for name in names}
    result = local_train(model, make_loader(), config, m)
    fresh = next_variate(zeros_like(m), m, result.delta, result.lr_sum)
    torch.testing.assert_close(fresh["idle"], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-15)
    assert "frozen" not in result.delta
    assert torch.equal(model.frozen, torch.ones(2, dtype=torch.float64))
    again = Idle()
    local_train(again, make_loader(), LocalConfig(0.1, 3, 0.5, 0.1))
    assert torch.equal(again.idle, torch.ones(2, dtype=torch.float64))  # as torch's optimizers skip it


def test_frozen_and_tied_parameters_may_be_in_the_correction():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5, bias=False, dtype=torch.float64)
            self.second = nn.Linear(5, 5, bias=False, dtype=torch.float64)
            self.second.weight = self.first.weight
            self.head = nn.Linear(5, 3, dtype=torch.float64)
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(self.second(self.first(x).tanh()))

    model = Tied()
    start = copy.deepcopy(model)
    config = LocalConfig(0.1, 1, 1.0, 0.0, None)
    plain = local_train(copy.deepcopy(model), make_loader(), config).delta
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(names) == 4
    correction = {name: torch.ones_like(dict(model.state_dict())[name]) for name in names}
    delta = local_train(model, make_loader(), config, correction).delta
    assert set(delta) == {"first.weight", "head.weight"}
    for name, moved in delta.items():  # once, although the tied one has two names
        torch.testing.assert_close(moved, plain[name] - 0.1, rtol=0, atol=1e-14)
    assert torch.equal(model.head.bias, start.head.bias)


def test_sam_takes_the_gradient_uphill():
    class Parabola(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))

    model = Parabola()
    config = LocalConfig(0.1, 1, 1.0, 0.0, None, sam_radius=0.5)
    # f = |x|^2 / 2: the gradient at x + r x / |x| is x (1 + r / |x|) = 1.1 x.
    result = local_train(model, [torch.zeros(1)], config, loss=lambda m, _: (m.x**2).sum() / 2)
    torch.testing.assert_close(result.delta["x"], -0.11 * torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert result.loss == pytest.approx(12.5)


def test_option_one_is_the_gradient_of_all_data_whatever_the_batches():
    model, loader = make_model(), make_loader()
    inputs, classes = (torch.cat(parts) for parts in zip(*loader, strict=True))
    whole = full_gradient(model, [(inputs, classes)], weight_decay=0.1)
    uneven = full_gradient(model, [(inputs[:7], classes[:7]), (inputs[7:], classes[7:])], weight_decay=0.1)
    wanted = torch.autograd.grad(cross_entropy(model, (inputs, classes)), list(model.parameters()))
    for (name, p), gradient in zip(named(model).items(), wanted, strict=True):
        torch.testing.assert_close(whole[name], gradient + 0.1 * p.detach(), rtol=0, atol=1e-14)
        torch.testing.assert_close(uneven[name], whole[name], rtol=0, atol=1e-14)


def test_other_optimizers_break_the_identity_and_are_refused():
    config, loader = LocalConfig(0.01, 4), make_loader()
    for make in (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, 0.1, weight_decay=1e-3),
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=1e-3),
    ):
        model = make_model()
        correction = random_like(model, 1)
        optimizer = make(model.parameters())
        with pytest.raises(InputError, match=r"no plain SGD.*allow_inexact=True") as caught:
            local_train(model, loader, config, correction, optimizer=optimizer)
        assert "\n" not in str(caught.value)
        for name, p in named(make_model()).items():
            assert torch.equal(named(model)[name], p)  # refused before anything moved
        local_train(model, loader, config, correction, optimizer=optimizer, allow_inexact=True)
        local_train(model, loader, config, optimizer=optimizer)  # without a correction all is well


def test_plain_sgd_from_torch_takes_the_same_round():
    config = LocalConfig(0.1, 5, 0.3, weight_decay=0.0, clip_norm=0.5)
    ours, theirs, loader = make_model(), make_model(), make_loader()
    correction = random_like(ours, 6)
    first = local_train(ours, loader, config, correction)
    sgd = torch.optim.SGD(theirs.parameters(), 7.0)
    second = local_train(theirs, loader, config, correction, optimizer=sgd)
    assert first.lr_sum == second.lr_sum
    for name, p in named(ours).items():
        torch.testing.assert_close(p, named(theirs)[name], rtol=0, atol=1e-15)


def test_bad_rounds_are_refused():
    model, config = make_model(), LocalConfig(0.1, 3)
    with pytest.raises(InputError, match="loader is empty"):
        local_train(model, [], config)
    with pytest.raises(InputError, match="loader is empty after 4 of 9 steps"):
        local_train(model, iter(make_loader()), LocalConfig(0.1, 9))
    with pytest.raises(InputError, match="loss is nan at local step 1"):
        local_train(model, make_loader(), config, loss=lambda m, b: cross_entropy(m, b) * float("nan"))
    with pytest.raises(InputError, match="the correction lacks"):
        local_train(model, make_loader(), config, {"0.weight": torch.zeros(8, 5)})
    with pytest.raises(InputError, match=r"shape of '0\.weight' in the correction"):
        local_train(model, make_loader(), config, random_like(model, 0) | {"0.weight": torch.zeros(1)})
    with pytest.raises(
        InputError, match=r"the correction has \['3.inv_freq'\], which the model does not train"
    ):
        local_train(model, make_loader(), config, random_like(model, 0) | {"3.inv_freq": torch.zeros(1)})
    with pytest.raises(InputError, match="no parameter needs a gradient"):
        CyclicSGD(make_model().requires_grad_(False).named_parameters(), config)
    with pytest.raises(InputError, match="loader is empty"):
        full_gradient(model, [])
    for wrong in ({"lr": -1}, {"local_steps": 0}, {"rho": 2}, {"weight_decay": -1}, {"clip_norm": 0}):
        with pytest.raises(InputError):
            LocalConfig(**{"lr": 0.1, "local_steps": 3, **wrong})


def test_numpy_and_torch_agree():
    model = make_model()
    m, c, delta = (random_like(model, seed) for seed in range(3))
    tensors = next_variate(c, m, delta, 0.3)
    arrays = next_variate(*({k: v.numpy() for k, v in part.items()} for part in (c, m, delta)), 0.3)
    for name in m:
        np.testing.assert_array_equal(tensors[name].numpy(), arrays[name])


def test_an_optimizer_of_other_parameters_or_decay_is_refused():
    config, loader, model = LocalConfig(0.1, 2), make_loader(), make_model()
    for parameters, message in (
        (make_model().parameters(), "lacks 4 of the model's 4 trainable parameters and has 4 of others"),
        (model[0].parameters(), "lacks 2 of the model's 4 trainable parameters and has 0 of others"),
    ):
        with pytest.raises(InputError, match=message):
            local_train(model, loader, config, optimizer=torch.optim.SGD(parameters, 0.1, weight_decay=1e-3))
    for make in (torch.optim.SGD, torch.optim.Adam):
        with pytest.raises(
            InputError, match=r"weight_decay is 0 and the config's 0\.001; give both the same"
        ):
            local_train(model, loader, config, optimizer=make(model.parameters(), 0.1))
    for name, p in named(make_model()).items():
        assert torch.equal(named(model)[name], p)
    model[0].bias.requires_grad_(False)  # a frozen one may be among the optimizer's
    sgd = torch.optim.SGD(model.parameters(), 0.1, weight_decay=1e-3)
    assert local_train(model, loader, config, optimizer=sgd).delta.keys() == named(model).keys() - {"0.bias"}


def test_option_one_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    model[2].train()
    model[0].bias.requires_grad_(False)
    before = copy.deepcopy(model)
    gradient = full_gradient(model, make_loader())
    for name, array in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], array)
    assert [module.training for module in model.modules()] == [m.training for m in before.modules()]
    assert gradient.keys() == named(model).keys()
    assert not gradient["0.bias"].any()
    # In training mode, as the local steps are: the statistics are the batch's.
    one = make_loader()[:1]
    loss = cross_entropy(before.train(), one[0])
    (wanted,) = torch.autograd.grad(loss, [before[2].weight])
    torch.testing.assert_close(full_gradient(model, one)["2.weight"], wanted, rtol=0, atol=1e-14)


def test_option_one_gives_all_names_of_a_tied_parameter():
    model = nn.Sequential(nn.Linear(5, 5, dtype=torch.float64), nn.Linear(5, 5, dtype=torch.float64))
    model[1].weight = model[0].weight
    gradient = full_gradient(model, make_loader())
    assert torch.equal(gradient["0.weight"], gradient["1.weight"])
    (wanted,) = torch.autograd.grad(
        sum(cross_entropy(model, batch) for batch in make_loader()) / 4, [model[0].weight]
    )
    torch.testing.assert_close(gradient["0.weight"], wanted, rtol=0, atol=1e-14)
    with pytest.raises(InputError, match="no parameter needs a gradient"):
        full_gradient(model.requires_grad_(False), make_loader())


def test_a_correction_may_be_numpy_and_a_complex_parameter_is_refused():
    def train(kind):
        model = make_model()
        shift = {name: kind(np.full(tuple(p.shape), 0.5)) for name, p in model.named_parameters()}
        return local_train(model, make_loader(), LocalConfig(0.1, 3), shift).delta

    for name, moved in train(torch.from_numpy).items():
        np.testing.assert_array_equal(train(np.asarray)[name], moved)
    model = torch.nn.ParameterDict({"z": torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    with pytest.raises(InputError, match="parameter 'z' is complex"):
        CyclicSGD(model.named_parameters(), LocalConfig(0.1, 3))
