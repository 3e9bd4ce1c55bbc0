"""Molecular graphs as arrays, padded to batches.

A `MoleculeGraph` holds what the network knows of one molecule; `collate` pads several to a `MoleculeBatch`.
Nothing here knows RDKit: `hexad.science_ml.avgflow.molecules` makes the graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.core.errors import InputError

NODE_FEATURES = 75
LAPLACIAN_FEATURES = 32
EDGE_TYPES = 11
"""0 no bond, 1 single, 2 double, 3 triple, 4 aromatic; 5 cis and 6 trans across a double bond; 7 to 10 the
first to fourth neighbour of a stereocentre, in an order that turns the same way about every centre."""


@dataclass(frozen=True)
class MoleculeGraph:
    """One molecule, hydrogens included.

    Attributes:
        smiles: canonical SMILES without explicit hydrogens.
        atomic_numbers: of each atom.
        node_features: see `hexad.science_ml.avgflow.molecules.atom_features`.
        laplacian: eigenvectors of the graph's normalised Laplacian, padded with zeros.
        edge_types: see `EDGE_TYPES`; row i holds what atom i sees of the others. Not symmetric about
            stereocentres: the centre sees its neighbours' places, they see a plain bond.
    """

    smiles: str
    atomic_numbers: Int[np.ndarray, " n"]
    node_features: Float[np.ndarray, "n features"]
    laplacian: Float[np.ndarray, "n eigenvectors"]
    edge_types: Int[np.ndarray, "n n"]

    @property
    def atoms(self) -> int:
        """Number of atoms."""
        return len(self.atomic_numbers)


@dataclass(frozen=True)
class MoleculeBatch:
    """Molecules padded to the largest of them.

    Attributes:
        node_features: float32; zero where there is no atom, as the next two.
        laplacian: float32.
        edge_types: int64.
        mask: true where there is an atom.
    """

    node_features: Float[Tensor, "batch n features"]
    laplacian: Float[Tensor, "batch n eigenvectors"]
    edge_types: Int[Tensor, "batch n n"]
    mask: Bool[Tensor, "batch n"]

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def atoms(self) -> Int[Tensor, " batch"]:
        """Number of atoms of each molecule."""
        return self.mask.sum(dim=1)

    def to(self, device: torch.device | str) -> "MoleculeBatch":
        """The same batch on another device."""
        return MoleculeBatch(
            self.node_features.to(device),
            self.laplacian.to(device),
            self.edge_types.to(device),
            self.mask.to(device),
        )

    def repeat(self, copies: int) -> "MoleculeBatch":
        """Each molecule `copies` times, copies side by side: `[a, b]` becomes `[a, a, b, b]`."""
        return MoleculeBatch(
            self.node_features.repeat_interleave(copies, dim=0),
            self.laplacian.repeat_interleave(copies, dim=0),
            self.edge_types.repeat_interleave(copies, dim=0),
            self.mask.repeat_interleave(copies, dim=0),
        )


def collate(graphs: Sequence[MoleculeGraph], size: int | None = None) -> MoleculeBatch:
    """Pad graphs to the largest, or to `size` atoms.

    Raises:
        InputError: no graphs, or one that has more than `size` atoms.
    """
    if not graphs:
        raise InputError("a batch needs at least one molecule")
    largest = max(graphs, key=lambda graph: graph.atoms)
    size = largest.atoms if size is None else size
    if largest.atoms > size:
        raise InputError(f"{largest.smiles} has {largest.atoms} atoms, more than the {size} to pad to")
    count, features = len(graphs), graphs[0].node_features.shape[1]
    nodes = np.zeros((count, size, features), np.float32)
    laplacian = np.zeros((count, size, graphs[0].laplacian.shape[1]), np.float32)
    edges = np.zeros((count, size, size), np.int64)
    mask = np.zeros((count, size), bool)
    for place, graph in enumerate(graphs):
        n = graph.atoms
        nodes[place, :n] = graph.node_features
        laplacian[place, :n] = graph.laplacian
        edges[place, :n, :n] = graph.edge_types
        mask[place, :n] = True
    return MoleculeBatch(
        torch.from_numpy(nodes), torch.from_numpy(laplacian), torch.from_numpy(edges), torch.from_numpy(mask)
    )


def pad_coordinates(
    conformers: Sequence[Float[np.ndarray, "_ 3"]], size: int | None = None
) -> Float[Tensor, "batch n 3"]:
    """Coordinates of several molecules, centred on each molecule's mean and padded with zeros (float32).

    Raises:
        InputError: an array that is not (atoms, 3), is not finite, or has more than `size` atoms.
    """
    if not conformers:
        raise InputError("a batch needs at least one conformer")
    for number, conformer in enumerate(conformers):
        if conformer.ndim != 2 or conformer.shape[1] != 3:
            raise InputError(f"conformer {number} has shape {conformer.shape}; it must be (atoms, 3)")
        if not np.isfinite(conformer).all():
            raise InputError(f"conformer {number} holds coordinates that are not finite")
    largest = max(len(conformer) for conformer in conformers)
    size = largest if size is None else size
    if largest > size:
        raise InputError(f"a conformer has {largest} atoms, more than the {size} to pad to")
    padded = np.zeros((len(conformers), size, 3), np.float32)
    for place, conformer in enumerate(conformers):
        padded[place, : len(conformer)] = conformer - conformer.mean(axis=0)
    return torch.from_numpy(padded)


def bucket_by_size(sizes: Sequence[int], batch_size: int, seed: int) -> list[list[int]]:
    """Indices in batches of molecules of nearly the same size, batches and equals in random order.

    Padding to the largest molecule of a batch then wastes little. The last batch of the largest molecules may
    be smaller than `batch_size`; no index is dropped or repeated.
    """
    rng = np.random.default_rng(seed)
    # A jitter of up to two atoms, so that the batches of two epochs are not the same.
    order = np.argsort(np.asarray(sizes) + rng.uniform(0, 2, len(sizes)), kind="stable")
    batches = [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
    rng.shuffle(batches)
    return batches
