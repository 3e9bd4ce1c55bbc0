import os
import signal
import threading

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.utils.data import TensorDataset

from hexad.core.errors import InputError
from hexad.core.training import ResumableBatches, TrainingConfig, train


def make(seed=0):
    torch.manual_seed(seed)
    # Dropout uses the random generator, AdamW has state: both must survive a resume.
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def data(n=50):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + 0.3)


def squared(model, batch):
    x, y = batch
    return ((model(x) - y) ** 2).mean()


CONFIG = TrainingConfig(steps=40, batch_size=8, seed=3, checkpoint_every=10, clip_norm=5.0)


def run(folder, config=CONFIG, loss=squared, dataset=None, **options):
    model, optimizer, scheduler = make()
    history = train(
        model,
        optimizer,
        loss,
        data() if dataset is None else dataset,
        config,
        folder,
        scheduler=scheduler,
        **options,
    )
    return history, model


def test_training_finds_the_weights_behind_the_data(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = train(model, optimizer, squared, data(), TrainingConfig(steps=200, batch_size=10), tmp_path)
    # The data are exactly linear, so gradient descent converges to rounding error.
    torch.testing.assert_close(model.weight.data, torch.tensor([[1.0, -2.0, 0.5, 0.0]]), atol=1e-4, rtol=0)
    assert model.bias.item() == pytest.approx(0.3, abs=1e-4)
    assert history[-1] < 1e-7


def test_training_repeats_with_its_seed(tmp_path):
    history, model = run(tmp_path / "a")
    again, twin = run(tmp_path / "b")
    assert history.shape == (40,)
    np.testing.assert_array_equal(history, again)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    other, _ = run(tmp_path / "c", TrainingConfig(**{**CONFIG.__dict__, "seed": 4}))
    assert not np.array_equal(history, other)


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize("at", [17, 31])
def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(tmp_path, at):
    whole, model = run(tmp_path / "whole")

    def cut(fraction, note):
        if round(fraction * 40) == at:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        run(tmp_path / "cut", progress=cut)
    steps = []
    rest, resumed = run(tmp_path / "cut", progress=lambda fraction, note: steps.append(round(fraction * 40)))
    assert steps[0] == at // 10 * 10 + 1  # from the last checkpoint, not from the start
    np.testing.assert_array_equal(whole, rest)
    for ours, theirs in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_ctrl_c_finishes_the_step_and_stores_it(tmp_path):
    assert threading.current_thread() is threading.main_thread()

    def interrupt(fraction, note):
        if round(fraction * 40) == 13:
            os.kill(os.getpid(), signal.SIGINT)

    whole, _ = run(tmp_path / "whole")
    # Tests that a shell runs in the background begin with Ctrl-C ignored, which training would respect.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(p.name for p in (tmp_path / "cut").iterdir())[-1] == "step-000000013.safetensors"
    rest, _ = run(tmp_path / "cut")
    np.testing.assert_array_equal(whole, rest)


def test_checkpoints_are_safetensors_and_only_the_newest_stay(tmp_path):
    run(tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["step-000000030.safetensors", "step-000000040.safetensors"]
    with safe_open(tmp_path / names[-1], framework="pt") as file:
        assert "model.0.weight" in file.keys()  # noqa: SIM118
        assert "optimizer.0.exp_avg" in file.keys()  # noqa: SIM118


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    whole, _ = run(tmp_path)
    newest = tmp_path / "step-000000040.safetensors"
    newest.write_bytes(newest.read_bytes()[:-50])
    rest, _ = run(tmp_path)
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(whole, rest)


def test_tied_weights_survive_a_checkpoint(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.out = nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.b(self.a(x).relu()))

    def go():
        torch.manual_seed(0)
        model = Tied()
        config = TrainingConfig(steps=4, batch_size=8, checkpoint_every=4)
        return train(
            model, torch.optim.SGD(model.parameters(), 0.01), squared, data(), config, tmp_path
        ), model

    first, model = go()
    again, resumed = go()
    np.testing.assert_array_equal(first, again)
    assert resumed.b.weight is resumed.a.weight
    assert torch.equal(resumed.b.weight, model.b.weight)


def test_every_sample_comes_once_an_epoch_whatever_the_start_and_the_devices():
    batches = list(ResumableBatches(10, 4, seed=1, start=0, stop=5))
    seen = np.concatenate(batches)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert not np.array_equal(seen[:10], seen[10:])
    assert list(ResumableBatches(10, 4, seed=1, start=3, stop=5)) == batches[3:]
    shares = [list(ResumableBatches(10, 4, 1, 0, 5, rank, 2)) for rank in range(2)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(b) for b in batches]
    # A batch larger than the data set wraps around.
    assert sorted(next(iter(ResumableBatches(3, 6, 0, 0, 1)))) == [0, 0, 1, 1, 2, 2]


def test_mistakes_are_refused(tmp_path):
    with pytest.raises(InputError, match="steps is 0"):
        TrainingConfig(steps=0)
    with pytest.raises(InputError, match="clip_norm"):
        TrainingConfig(steps=1, clip_norm=0)
    with pytest.raises(InputError, match="dataset is empty"):
        run(tmp_path / "a", dataset=TensorDataset(torch.empty(0, 4)))
    with pytest.raises(InputError, match="the loss is nan at step 0"):
        run(tmp_path / "b", loss=lambda model, batch: squared(model, batch) * float("nan"))
    run(tmp_path / "c")
    with pytest.raises(InputError, match="other settings"):
        run(tmp_path / "c", TrainingConfig(**{**CONFIG.__dict__, "seed": 5}))
    with pytest.raises(InputError, match="more than the 20 asked for"):
        run(tmp_path / "c", TrainingConfig(**{**CONFIG.__dict__, "steps": 20}))
    # Another learning rate would silently be the checkpoint's; another optimizer's state does not fit.
    model, optimizer, _ = make()
    train(model, optimizer, squared, data(), CONFIG, tmp_path / "d")
    for optimizer, message in (
        (torch.optim.AdamW(model.parameters(), lr=0.5), r"lr: \[0.01\] -> \[0.5\]"),
        (torch.optim.SGD(model.parameters(), lr=0.01), "optimizer: AdamW -> SGD"),
    ):
        with pytest.raises(InputError, match=message):
            train(model, optimizer, squared, data(), CONFIG, tmp_path / "d")
    other = nn.Linear(4, 1)
    with pytest.raises(InputError, match="another model"):
        train(other, torch.optim.AdamW(other.parameters(), lr=0.01), squared, data(), CONFIG, tmp_path / "d")


def test_another_schedule_is_refused(tmp_path):
    run(tmp_path)
    model, optimizer, _ = make()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    with pytest.raises(InputError, match=r"scheduler.T_max: 40 -> 80"):
        train(model, optimizer, squared, data(), CONFIG, tmp_path, scheduler=schedule)


def test_weights_that_blew_up_are_not_kept(tmp_path):
    def explode(factor, steps=1):
        model, _, _ = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e37)
        config = TrainingConfig(steps=steps, keep=1)
        train(model, optimizer, lambda *given: factor * squared(*given), data(), config, tmp_path)

    with pytest.raises(InputError, match="weights are not finite after step 1"):
        explode(1e4)
    assert not list(tmp_path.iterdir())
    explode(1)
    with pytest.raises(InputError, match="the checkpoint of step 1 leads here: delete it"):
        explode(1, steps=2)


def test_a_learning_rate_in_a_tensor_is_stored(tmp_path):
    model, _, _ = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), capturable=False, foreach=False)
    config = TrainingConfig(steps=2)
    train(model, optimizer, squared, data(), config, tmp_path)
    assert len(train(model, optimizer, squared, data(), config, tmp_path)) == 2


@pytest.mark.parametrize(
    ("settings", "message"), [({"steps": 2.5}, "steps is 2.5"), ({"precision": "fp8"}, "unknown precision")]
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainingConfig(**({"steps": 1} | settings))


def test_a_run_goes_on_with_its_own_identity_alone(tmp_path):
    run(tmp_path, identity={"data": "abc", "classes": [1, 2]})
    run(tmp_path, identity={"classes": [1, 2], "data": "abc"})
    with pytest.raises(InputError, match=r"other settings \(data: abc -> abd\); name another folder"):
        run(tmp_path, identity={"data": "abd", "classes": [1, 2]})
