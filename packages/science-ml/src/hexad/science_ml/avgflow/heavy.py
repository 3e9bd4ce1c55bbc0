"""The study's small problem: heavy atoms of NCI molecules, networks that learn them, and samples of these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from rdkit import Chem
from torch import Tensor

from hexad.science_ml.avgflow.batching import MoleculeBatch, MoleculeGraph, collate
from hexad.science_ml.avgflow.ensembles import fits, split_of, with_conformers
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.flow import FlowMatcher, Objective
from hexad.science_ml.avgflow.library import load_ensembles
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig
from hexad.science_ml.avgflow.reflow import make_reflow_pairs
from hexad.science_ml.avgflow.sampling import integrate, time_grid
from hexad.science_ml.avgflow.training import FlowTrainingConfig, Network, refine, train_base

Progress = Callable[[float, str], None]
SIZES = ConformerFlowConfig(layers=4, heads=4, width=96, pairs=24, registers=4, hops=4)
CHUNK = 256
"""Samples integrated together."""


@dataclass(frozen=True)
class HeavyMolecule:
    """A molecule without its hydrogens.

    Attributes:
        mol: with the reference conformers.
        graph: of the heavy atoms; hydrogens count among their features.
        frames: the reference conformers, Angstrom, centred.
    """

    mol: Chem.Mol
    graph: MoleculeGraph
    frames: Float[np.ndarray, "k n 3"]


def heavy_molecules(train: int, test: int) -> tuple[list[HeavyMolecule], list[HeavyMolecule]]:
    """The first molecules of each side of the fixed split.

    6 to 14 heavy atoms of C, N, O, F, S and Cl, 1 to 5 rotatable bonds. Hydrogens that define the geometry of
    an imine stay with a molecule when the others go; such molecules are left out.
    """
    sides: dict[str, list[HeavyMolecule]] = {"train": [], "test": []}
    # About seven in ten packaged molecules are of this kind, and one in eight is for tests.
    needed = max(2 * train, 14 * test)
    for ensemble in load_ensembles(min(-(-needed // 50) * 50, 2114)):
        bare = Chem.MolFromSmiles(ensemble.smiles)
        if "[H]" in ensemble.smiles or "Br" in ensemble.smiles or not fits(bare, (6, 14), (1, 5)):
            continue
        whole = read_molecule(ensemble.smiles)
        mol = Chem.RemoveHs(whole)
        heavy = [atom.GetIdx() for atom in whole.GetAtoms() if atom.GetAtomicNum() > 1]
        frames = ensemble.positions[:, heavy]
        frames = frames - frames.mean(axis=1, keepdims=True)
        known = HeavyMolecule(with_conformers(mol, frames), featurize(mol), frames)
        sides[split_of(ensemble.smiles)].append(known)
    return sides["train"][:train], sides["test"][:test]


def train_objective(
    molecules: Sequence[HeavyMolecule],
    objective: Objective,
    steps: int,
    seed: int,
    folder: Path,
    progress: Progress,
) -> tuple[Network, Float[np.ndarray, " steps"]]:
    """A DiT of 4 layers by 96 after `steps` batches of 32; weights and order follow the seed alone."""
    torch.manual_seed(seed)
    config = FlowTrainingConfig(
        steps, 32, 2e-3, warmup=min(200, steps), decay=0.995, conformers=1, seed=seed, checkpoint_every=250
    )
    return train_base(
        ConformerFlow(SIZES),
        [molecule.graph for molecule in molecules],
        [molecule.frames for molecule in molecules],
        config,
        folder,
        FlowMatcher(objective),
        progress,
    )


def straighten(
    base: Network,
    molecules: Sequence[HeavyMolecule],
    pairs: int,
    steps: int,
    seed: int,
    folder: Path,
    progress: Progress,
) -> tuple[Network, Network]:
    """The network after reflow, and after distillation from there, on the same pairs of the base flow."""
    graphs = [molecule.graph for molecule in molecules]
    made = [
        pair.numpy() for pair in make_reflow_pairs(base, graphs, pairs, steps=20, seed=seed, batch_size=CHUNK)
    ]
    config = FlowTrainingConfig(
        steps, 32, 1e-3, warmup=min(100, steps), decay=0.99, seed=seed, checkpoint_every=250
    )
    reflowed, _ = refine(base, graphs, made, "reflow", config, folder / "reflow", progress)
    distilled, _ = refine(reflowed, graphs, made, "distilled", config, folder / "distilled", progress)
    return reflowed, distilled


@torch.no_grad()
def sample_heavy(
    network: Network, molecules: Sequence[HeavyMolecule], steps: int, seed: int
) -> list[Chem.Mol]:
    """Twice as many samples as references of each molecule; the noise is the same for all networks."""
    network.eval()
    order = [place for place, known in enumerate(molecules) for _ in range(2 * len(known.frames))]
    order.sort(key=lambda place: molecules[place].graph.atoms)
    generator = torch.Generator().manual_seed(seed)
    times = time_grid(steps)
    found: list[list[np.ndarray]] = [[] for _ in molecules]
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        batch = collate([molecules[place].graph for place in chunk])
        x0 = torch.randn(*batch.mask.shape, 3, generator=generator) * batch.mask.unsqueeze(-1)
        x0 = (x0 - x0.sum(1, keepdim=True) / batch.atoms[:, None, None]) * batch.mask.unsqueeze(-1)

        def field(x: Tensor, t: float, batch: MoleculeBatch = batch) -> Tensor:
            return network(x, torch.full((len(x),), t), batch)

        x1 = integrate(field, x0, times).double().numpy()
        for place, frame in zip(chunk, x1, strict=True):
            found[place].append(frame[: molecules[place].graph.atoms])
    return [
        with_conformers(known.mol, np.stack(frames)) for known, frames in zip(molecules, found, strict=True)
    ]
