"""A stand-in for a network: the exact averaged field of one known conformer, which needs no training."""

import numpy as np
from torch import Tensor, nn

from hexad.science_ml.avgflow.batching import MoleculeBatch, pad_coordinates
from hexad.science_ml.avgflow.checkpoint import Checkpoint
from hexad.science_ml.avgflow.molecules import ELEMENTS
from hexad.science_ml.avgflow.targets import averaged_velocity


class ExactField(nn.Module):
    """The velocity to the conformers of molecules that differ in their number of atoms."""

    def __init__(self, conformers: list[np.ndarray]) -> None:
        super().__init__()
        self.conformers = {len(frame): frame for frame in conformers}
        self.batches: list[int] = []

    def forward(self, x: Tensor, t: Tensor, batch: MoleculeBatch) -> Tensor:
        self.batches.append(len(x))
        X = pad_coordinates([self.conformers[n] for n in batch.atoms.tolist()], batch.mask.shape[1])
        return averaged_velocity(x, X, t.clamp(max=0.999), mask=batch.mask)


def exact_checkpoint(conformers: list[np.ndarray], kind: str = "base") -> Checkpoint:
    return Checkpoint(ExactField(conformers), kind, ELEMENTS, 60)
