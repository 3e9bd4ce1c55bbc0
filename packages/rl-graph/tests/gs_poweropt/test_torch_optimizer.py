"""The torch optimiser: noise drawn again, the same mathematics."""

import math

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt import GSPowerOptimizer, Settings
from hexad.rl_graph.gs_poweropt.weighting import log_weights, weights


def parameters():
    return [nn.Parameter(torch.tensor([3.0, 0.0, -1.0])), nn.Parameter(torch.ones(2, 2))]


def loss_of(params):
    return sum((p - 0.5).square().sum() for p in params)


def samples_of(params, **options):
    """What the closure sees at the samples of one step, (K, d), and the parameters afterwards, (d,)."""
    seen = []

    def closure():
        seen.append(torch.cat([p.detach().flatten() for p in params]).clone())
        return loss_of(params)

    optimizer = GSPowerOptimizer(params, **options)
    optimizer.step(closure)
    return torch.stack(seen).double(), torch.cat([p.detach().flatten() for p in params]).double(), optimizer


@pytest.mark.parametrize("normalize", [True, False])
def test_a_step_is_that_of_the_weighted_samples(normalize):
    params = parameters()
    before = torch.cat([p.detach().flatten() for p in params]).double()
    options = {"power": 0.4, "popsize": 30, "normalize": normalize}
    samples, after, _ = samples_of(params, lr=0.2, sigma=0.3, seed=5, **options)
    noise = ((samples - before) / 0.3).numpy()
    logs = log_weights((samples - 0.5).square().sum(1).numpy(), Settings(**options))
    g = weights(logs, "mean") @ noise
    step = g / np.linalg.norm(g) if normalize else g / (0.3 * np.exp(logs).sum())
    np.testing.assert_allclose((after - before).numpy(), 0.2 * step, rtol=1e-4, atol=1e-6)


def test_samples_are_gaussian_with_the_standard_deviation_sigma():
    samples, _, _ = samples_of([nn.Parameter(torch.zeros(500))], sigma=0.3, popsize=40, seed=1)
    assert float(samples.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(samples.mean())) < 0.01
    similar = torch.corrcoef(samples) - torch.eye(40)
    assert float(similar.abs().max()) < 0.25, "samples are independent"


def test_seeds_reproduce_and_steps_differ():
    first, again, other = (samples_of(parameters(), popsize=8, seed=seed)[0] for seed in (3, 3, 4))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.allclose(first, other)
    params = parameters()
    optimizer = GSPowerOptimizer(params, popsize=2, seed=3, lr=1e-12)
    seen = []
    for _ in range(2):
        optimizer.step(lambda: seen.append(params[0].detach().clone()) or 0.0)
    assert not torch.allclose(seen[0], seen[2])


def test_a_classifier_is_trained_without_gradients():
    torch.manual_seed(0)
    X = torch.randn(200, 5)
    y = (X[:, 0] - X[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    # Accuracy itself, which has no gradient.
    optimizer = GSPowerOptimizer(model.parameters(), lr=0.3, sigma=0.3, power=20, popsize=50, seed=0)

    def closure():
        with torch.no_grad():
            return (model(X).argmax(1) != y).float().mean()

    losses = [optimizer.step(closure) for _ in range(60)]
    assert losses[-1] < 0.15 < 0.3 < losses[0]
    optimizer.load_best()
    assert float(closure()) == pytest.approx(optimizer.best_loss)
    assert optimizer.best_loss < 0.06


def test_groups_schedulers_and_decay():
    params = parameters()
    groups = [{"params": params[:1], "lr": 0.4, "sigma": 0.2}, {"params": params[1:]}]
    optimizer = GSPowerOptimizer(groups, lr=0.1, sigma=0.5, popsize=20, decay=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = [p.detach().clone() for p in params]
    optimizer.step(lambda: loss_of(params))
    # |step / lr| is 1 over both groups together.
    whole = math.hypot(
        float((params[0] - before[0]).norm()) / 0.4, float((params[1] - before[1]).norm()) / 0.1
    )
    assert whole == pytest.approx(1, rel=1e-4)
    scheduler.step()
    before = [p.detach().clone() for p in params]
    optimizer.step(lambda: loss_of(params))
    whole = math.hypot(
        float((params[0] - before[0]).norm()) / 0.4, float((params[1] - before[1]).norm()) / 0.1
    )
    assert whole == pytest.approx(0.25, rel=1e-4), "half by the scheduler, half by the decay"


def test_a_loaded_state_goes_on_exactly():
    params, others = parameters(), parameters()
    optimizer, other = (GSPowerOptimizer(p, popsize=10, seed=2) for p in (params, others))
    for _ in range(3):
        optimizer.step(lambda: loss_of(params))
    other.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        for mine, theirs in zip(others, params, strict=True):
            mine.copy_(theirs)
    assert other.best_loss == optimizer.best_loss
    for opt, own in ((optimizer, params), (other, others)):
        for _ in range(2):
            opt.step(lambda own=own: loss_of(own))
    for mine, theirs in zip(others, params, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_parameters_are_restored_exactly_where_the_closure_fails():
    params = parameters()
    before = [p.detach().clone() for p in params]
    optimizer = GSPowerOptimizer(params, popsize=10)

    def closure():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        optimizer.step(closure)
    with pytest.raises(InputError, match=r"the loss of sample 0 is nan; mend the closure"):
        optimizer.step(lambda: math.nan)
    optimizer.step(lambda: 7.0)  # no direction
    for p, value in zip(params, before, strict=True):
        torch.testing.assert_close(p.data, value, rtol=0, atol=0)
    assert optimizer.stalls == 1


def test_memory_does_not_grow_with_popsize():
    """Noise is drawn again: whatever popsize is, a few copies of the parameters."""
    from torch.profiler import ProfilerActivity, profile

    def peak(popsize):
        p = nn.Parameter(torch.zeros(100_000))
        optimizer = GSPowerOptimizer([p], popsize=popsize, lr=0.1, sigma=0.1)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            optimizer.step(lambda: float(p[0]))
        held, highest = 0, 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                highest = max(highest, held)
        return highest

    few, many = peak(4), peak(64)
    assert many < 1.2 * few
    assert many < 8 * 4 * 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "learning_rate is 0"),
        ({"sigma": 0}, "sigma is 0"),
        ({"popsize": 1}, "popsize is 1"),
        ({"seed": -1}, "seed is -1"),
        ({"keep_best": 1}, "keep_best is 1"),
        ({"distributed": True}, "needs torch.distributed.init_process_group first"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        GSPowerOptimizer(parameters(), **options)


def test_calls_are_checked():
    with pytest.raises(InputError, match=r"a parameter is of torch.int64"):
        GSPowerOptimizer([torch.zeros(3, dtype=torch.int64)])
    optimizer = GSPowerOptimizer(parameters())
    with pytest.raises(InputError, match="needs a closure"):
        optimizer.step()
    with pytest.raises(InputError, match="there is no best sample"):
        optimizer.load_best()


def _train_on_rank(rank, folder, ranks):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
    )
    params = parameters()
    optimizer = GSPowerOptimizer(params, popsize=11, seed=2, distributed=True)
    calls = []
    for _ in range(3):
        optimizer.step(lambda: calls.append(1) or loss_of(params))
    torch.save([*params, torch.tensor(len(calls))], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_share_the_samples_and_agree_with_one(tmp_path):
    mp.spawn(_train_on_rank, args=(tmp_path, 2), nprocs=2)
    params = parameters()
    optimizer = GSPowerOptimizer(params, popsize=11, seed=2)
    for _ in range(3):
        optimizer.step(lambda: loss_of(params))
    counts = []
    for rank in range(2):
        *found, calls = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        counts.append(int(calls))
        for mine, theirs in zip(params, found, strict=True):
            torch.testing.assert_close(mine.data, theirs.data, rtol=1e-5, atol=1e-6)
    assert counts == [18, 15]
