"""The four steps of SLWS on their own: rates, draws, permutation and restoration."""

import numpy as np
import pytest
import torch
from torch import nn

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba import VimBlock, layer_probs, shuffle_restore
from hexad.vision_robustness.shufflemamba.shuffling import draw_permutation, permute_tokens


def random_perm(tokens, seed=0):
    return torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def block():
    torch.manual_seed(0)
    return VimBlock(16, d_state=4)


@pytest.fixture
def tokens():
    return torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))


def test_rates_rise_linearly_from_zero():
    assert layer_probs(5, 0.5) == (0.0, 0.125, 0.25, 0.375, 0.5)
    assert np.allclose(layer_probs(24, 0.5), np.linspace(0, 0.5, 24))
    assert layer_probs(1, 0.5) == (0.0,)


def test_other_schedules():
    assert layer_probs(4, 0.3, "constant") == (0.0, 0.3, 0.3, 0.3)
    assert layer_probs(3, 0.4, lambda place: place**2) == (0.0, 0.1, 0.4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1.5), r"rate is 1.5; it must lie in \[0, 1\]"),
        ((3, float("nan")), "rate is nan"),
        ((0, 0.5), "depth is 0"),
        ((3, 0.5, "cosine"), "unknown schedule 'cosine'"),
        ((3, 0.5, lambda place: 2.0), r"schedule\(0\) is 2.0"),
    ],
)
def test_bad_rates_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        layer_probs(*arguments)


def test_draws_are_bernoulli():
    torch.manual_seed(0)
    for p in (0.1, 0.5):
        hits = sum(draw_permutation(p, 1, 2) is not None for _ in range(20_000))
        assert abs(hits / 20_000 - p) < 3 * (p * (1 - p) / 20_000) ** 0.5
    assert all(draw_permutation(1.0, 1, 2) is not None for _ in range(100))


def test_permutations_are_uniform():
    torch.manual_seed(0)
    counts = np.zeros(6)
    for _ in range(6_000):
        a, b, _ = draw_permutation(1.0, 1, 3).tolist()
        counts[2 * a + (b > 3 - a - b)] += 1
    # 1000 expected in each of six orders; three deviations of a binomial are 87.
    assert abs(counts - 1000).max() < 4 * (1000 * 5 / 6) ** 0.5


def test_nothing_is_drawn_at_rate_zero():
    state = torch.get_rng_state()
    assert draw_permutation(0.0, 1, 5) is None
    assert torch.equal(torch.get_rng_state(), state)


def test_the_whole_batch_shares_one_order_unless_asked_otherwise():
    assert draw_permutation(1.0, 4, 30).shape == (30,)
    each = draw_permutation(1.0, 4, 30, per_sample=True)
    assert each.shape == (4, 30)
    assert torch.equal(each.sort(1).values, torch.arange(30).expand(4, 30))
    assert len({tuple(row.tolist()) for row in each}) == 4


def test_the_identity_is_the_plain_layer_bit_for_bit(block, tokens):
    plain = block(tokens, tokens)
    shuffled = shuffle_restore(block, tokens, tokens, perm=torch.arange(9))
    assert all(torch.equal(a, b) for a, b in zip(plain, shuffled, strict=True))


def test_shuffle_and_restore_return_the_ids_in_order():
    ids = torch.arange(7).reshape(1, 7, 1).expand(3, 7, 1)
    for perm in (random_perm(7), torch.stack([random_perm(7, seed) for seed in range(3)])):
        seen = []
        out = shuffle_restore(lambda x, seen=seen: seen.append(x) or x, ids, perm=perm)
        assert torch.equal(out, ids)
        assert torch.equal(seen[0][:, :, 0], perm.expand(3, 7))  # the layer saw them in this order


def test_a_layer_that_knows_no_order_is_unchanged(tokens):
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def attend(x):
        return attention(x, x, x, need_weights=False)[0]

    for layer in (mlp, attend):
        for seed in range(5):
            # 1e-6: sums over tokens run in another order.
            torch.testing.assert_close(
                shuffle_restore(layer, tokens, perm=random_perm(9, seed)), layer(tokens), atol=1e-6, rtol=0
            )


def test_a_vim_layer_is_changed(block, tokens):
    hidden, residual = shuffle_restore(block, tokens, None, perm=random_perm(9))
    plain, _ = block(tokens)
    assert (hidden - plain).abs().max() > 1e-3
    assert torch.equal(residual, tokens)


def test_it_is_the_conjugate_of_the_layer_for_both_streams(block, tokens):
    perm, other = random_perm(9, 3), torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(5))
    matrix = torch.eye(9)[perm]  # P x is x[:, perm]
    expected = block(matrix @ tokens, matrix @ other)
    hidden, residual = shuffle_restore(block, tokens, other, perm=perm)
    torch.testing.assert_close(hidden, matrix.T @ expected[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(residual, matrix.T @ expected[1], atol=1e-6, rtol=0)


def test_every_sample_keeps_its_own_order(block, tokens):
    perms = torch.stack([random_perm(9, 1), random_perm(9, 2)])
    both, _ = shuffle_restore(block, tokens, None, perm=perms)
    for row, perm in enumerate(perms):
        alone, _ = shuffle_restore(block, tokens[row : row + 1], None, perm=perm)
        torch.testing.assert_close(both[row : row + 1], alone, atol=1e-6, rtol=0)


def test_gradients_flow_back_to_the_tokens_they_came_from(block, tokens):
    x = tokens.clone().requires_grad_()
    perm = random_perm(9, 4)
    shuffle_restore(block, x, None, perm=perm)[0][:, 3].sum().backward()
    moved = tokens[:, perm].clone().requires_grad_()
    block(moved)[0][:, (perm == 3).nonzero().item()].sum().backward()
    torch.testing.assert_close(x.grad[:, perm], moved.grad, atol=1e-6, rtol=0)


def test_misfits_are_refused(tokens):
    with pytest.raises(
        InputError, match=r"residual of shape \(2, 8, 16\).*hidden states of shape \(2, 9, 16\)"
    ):
        shuffle_restore(lambda x, y: x, tokens, tokens[:, :8], perm=random_perm(9))
    with pytest.raises(InputError, match="no tokens"):
        shuffle_restore(lambda x: x, tokens[:, :0], perm=torch.arange(0))
    with pytest.raises(InputError, match=r"permutation has the shape \(8,\) for 2 samples of 9 tokens"):
        shuffle_restore(lambda x: x, tokens, perm=random_perm(8))
    with pytest.raises(InputError, match="T = 0"):
        draw_permutation(0.5, 1, 0)


def test_permute_tokens_keeps_further_dimensions():
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    perm = torch.tensor([[2, 0, 1], [1, 2, 0]])
    expected = torch.stack([x[0, perm[0]], x[1, perm[1]]])
    assert torch.equal(permute_tokens(x, perm), expected)


def test_what_is_no_permutation_is_refused():
    x = torch.randn(2, 3, 4)
    for perm in (torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3]), torch.tensor([[0, 1, 2], [2, 2, 0]])):
        with pytest.raises(InputError, match="perm is no permutation: it must hold each of 0 to 2 once"):
            shuffle_restore(lambda t: t, x, perm=perm)
