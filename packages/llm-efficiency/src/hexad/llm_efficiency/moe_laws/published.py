"""What the paper prints, to be compared with what is computed; nothing else reads it.

Source: "Joint MoE Scaling Laws" (arXiv 2502.05172v2), Tables 1, 2 and 4 and appendix E.
"""

import itertools

TABLE_1: dict[tuple[float, int], tuple[float, float]] = {
    (1e20, 1): (1.7e9, 9.7e9),
    (1e20, 2): (1.5e9, 11.4e9),
    (1e20, 4): (1.2e9, 13.9e9),
    (1e20, 8): (990e6, 17e9),
    (1e20, 16): (810e6, 20.7e9),
    (1e20, 32): (669e6, 24.9e9),
    (1e21, 1): (5.7e9, 29.3e9),
    (1e21, 8): (3.8e9, 44.3e9),
    (1e21, 32): (2.85e9, 58.4e9),
    (1e22, 1): (18.8e9, 88.6e9),
    (1e22, 8): (14.4e9, 115.8e9),
    (1e22, 32): (12.2e9, 136.9e9),
}
"""Compute-optimal active parameters and tokens at (FLOPs, experts), as rounded in the table."""

TABLE_2: dict[tuple[float, float], int] = dict(
    zip(
        itertools.product((1e21, 1e22, 1e23, 1e24), (24e9, 80e9, 640e9)),
        (16, 32, 32, 4, 16, 32, 1, 8, 32, 1, 1, 16),
        strict=True,
    )
)
"""Best number of experts at (FLOPs, bytes) with a cache of 16k tokens in bf16; 32 stands for 32 and more."""

TABLE_2_TOKENS = 16_384

TABLE_4: dict[int, tuple[float, float, float, float]] = {
    1: (30.3640, -0.1817, 53.9838, -0.1965),
    2: (27.7982, -0.1780, 66.8401, -0.2065),
    4: (24.8462, -0.1731, 87.7022, -0.2192),
    8: (21.8330, -0.1676, 119.9126, -0.2338),
    16: (19.0159, -0.1617, 167.5073, -0.2494),
    32: (16.5424, -0.1557, 234.6726, -0.2652),
}
"""m, mu, n and nu of the Chinchilla law of each number of experts."""


def _halvings(most: float, least: float) -> list[float]:
    counts = [most]
    while counts[-1] > least:
        counts.append(counts[-1] / 2)
    return counts


_EACH = (1, 2, 4, 8, 16, 32)
_GRID: tuple[tuple[float, tuple[int, ...], list[float]], ...] = (
    (79, _EACH, _halvings(2, 0.5)),
    (118, _EACH, _halvings(4, 0.5)),
    (169, _EACH, _halvings(8, 0.5)),
    (321, _EACH, _halvings(16, 0.5)),
    (469, (1, 2), _halvings(32, 0.5)),
    (469, (4, 8), _halvings(32, 1)),
    (683, (1, 2), _halvings(32, 0.5)),
    (683, (4, 8), _halvings(16, 0.5)),
    (709, (1, 2, 4), _halvings(64, 0.5)),
    (1100, (1, 2, 4), [80, *_halvings(64, 0.5)]),
    (1300, (1, 2, 4), _halvings(64, 0.5)),
    (1600, (1, 2), _halvings(32, 1)),
    (2700, (1,), _halvings(16, 1)),
)

TRAINING_GRID: tuple[tuple[float, float, int], ...] = tuple(
    (size * 1e6, tokens * 1e9, experts)
    for size, counts, all_tokens in _GRID
    for experts in counts
    for tokens in all_tokens
)
"""The 252 runs (active parameters, tokens, experts) of appendix E.

Where our reading of the appendix leaves the tokens open (469M, and 709M and larger) they are halvings that
make up the 252.
"""
