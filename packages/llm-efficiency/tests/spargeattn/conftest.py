import pytest
import torch


@pytest.fixture
def make_qkv():
    """A maker of q, k, v whose runs of 32 tokens resemble one another, so that there is something to skip."""

    def make(n_q=256, n_k=None, heads=2, k_heads=None, d=32, batch=1, seed=0, noise=0.3):
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(8, d, generator=generator)

        def tokens(n, heads):
            runs = torch.randint(8, (batch, heads, -(-n // 32)), generator=generator)
            run = centres[runs].repeat_interleave(32, dim=2)[:, :, :n]
            return 1.5 * run + noise * torch.randn(batch, heads, n, d, generator=generator)

        n_k, k_heads = n_k or n_q, k_heads or heads
        v = torch.randn(batch, k_heads, n_k, d, generator=generator)
        return tokens(n_q, heads), tokens(n_k, k_heads), v

    return make
