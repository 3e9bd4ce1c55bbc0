"""Training samples with their kept costs, which are the same at every step, computed once."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hexad.vision_robustness.costfilter_ad.filter import CostFilter
from hexad.vision_robustness.costfilter_ad.samples import BATCH, SampleBank

LIMIT = 2**30
"""Costs of more bytes than this are computed anew at every step."""


class MatchedSamples(Dataset[Any]):
    """Samples of a bank with their kept costs as half floats (off by 5e-4 at most) and the detector's map.

    Args:
        model: whose detector matches; its costs are kept in "rank" order.
        bank: the samples.
    """

    def __init__(self, model: CostFilter, bank: SampleBank) -> None:
        self.bank, self.kept, self.base = bank, [], None
        kept: list[list[np.ndarray]] = []
        bases: list[np.ndarray] = []
        for first in range(0, len(bank), BATCH):
            matching = model.detector.match(*bank.batch(first, min(first + BATCH, len(bank))))
            (costs,) = model.kept(matching)
            kept.append([grid.numpy().astype(np.float16) for grid in costs])
            if matching.base is not None:
                bases.append(matching.base.numpy())
        self.kept = [np.concatenate(layer) for layer in zip(*kept, strict=True)]
        self.base = np.concatenate(bases) if bases else None

    @staticmethod
    def suits(model: CostFilter, bank: SampleBank) -> bool:
        """Whether the costs are one set a sample, and few enough to be kept in memory."""
        places = sum(int(np.prod(layer.shape[2:])) for layer in bank.features)
        size = 2 * len(bank) * model.network.config.match_dim * places
        return model.config.order == "rank" and size <= LIMIT

    def __len__(self) -> int:
        return len(self.bank)

    def __getitem__(self, index: int) -> tuple[list[Tensor], Tensor, int, list[Tensor], Tensor]:
        costs = [torch.from_numpy(grid[index].astype(np.float32)) for grid in self.kept]
        base = torch.empty(0) if self.base is None else torch.from_numpy(self.base[index])
        return *self.bank[index], costs, base
