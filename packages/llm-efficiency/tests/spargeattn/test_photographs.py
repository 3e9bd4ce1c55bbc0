"""The photograph task, and on it the numbers that the project's card measured with another program."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn import HeadParams, block_mask, hilbert_order
from hexad.llm_efficiency.spargeattn.photographs import denoising_task

pytest.importorskip("sklearn")


def test_attention_is_the_non_local_mean():
    """The softmax of the task's q.k is exp(-|z_i - z_j|^2 / 2 h^2) from the pixels, normalised."""
    side, h = 12, 0.6
    task = denoising_task("flower", side, seed=3)
    output = scaled_dot_product_attention(task.q, task.k, task.v, scale=task.scale)
    grey = task.noisy.double().mean(2)
    padded = torch.nn.functional.pad(grey[None, None], (3, 3, 3, 3), mode="reflect")[0, 0]
    patches = padded.unfold(0, 7, 1).unfold(1, 7, 1).reshape(side * side, 49)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], 1).double() * h / 6
    distance = torch.cdist(patches, patches).square() + torch.cdist(places, places).square()
    weights = torch.exp(-distance / (2 * h**2))
    expected = weights @ task.noisy.reshape(-1, 3).double() / weights.sum(1, keepdim=True)
    # float32 scores of about 10 carry errors of 1e-6.
    torch.testing.assert_close(task.image(output).reshape(-1, 3).double(), expected, atol=2e-5, rtol=1e-5)


def test_dense_attention_denoises():
    task = denoising_task("flower", 64)
    output = scaled_dot_product_attention(task.q, task.k, task.v, scale=task.scale)
    assert task.psnr(task.v) == pytest.approx(20.0, abs=0.1)  # noise of 0.1 is 20 dB by definition
    assert task.psnr(output) == pytest.approx(25.2, abs=0.3)


@pytest.mark.parametrize(
    ("name", "order", "sparsity"),
    [
        ("flower", "row-major", 0.34),
        ("china", "row-major", 0.31),
        ("flower", "hilbert", 0.929),
        ("china", "hilbert", 0.927),
        ("china", "random", 0.0),
    ],
)
def test_sparsity_at_16384_tokens(name, order, sparsity):
    """theta 0.3, tau 0.98; 0.012 covers the noise seed and the orientation of the curve."""
    task = denoising_task(name, 128)
    n = task.q.shape[2]
    permutation = {
        "row-major": torch.arange(n),
        "hilbert": hilbert_order((128, 128))[0],
        "random": torch.randperm(n, generator=torch.Generator().manual_seed(0)),
    }[order]
    q, k, _ = task.permuted(permutation)
    mask = block_mask(q, k, HeadParams(theta=0.3, tau=0.98), scale=task.scale)
    assert 1 - float(mask.float().mean()) == pytest.approx(sparsity, abs=0.012)


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="photograph"):
        denoising_task("moon", 64)
    with pytest.raises(InputError, match="side"):
        denoising_task("china", 300)
    with pytest.raises(InputError, match="bandwidth"):
        denoising_task("china", 64, bandwidth=0)
