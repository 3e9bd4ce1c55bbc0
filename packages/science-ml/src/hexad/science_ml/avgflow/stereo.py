"""Stereochemistry as geometry: what a molecule asks for, and whether coordinates have it."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float
from rdkit import Chem

_TURNS = (Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW)
_CIS = (Chem.BondStereo.STEREOCIS, Chem.BondStereo.STEREOZ)
_TRANS = (Chem.BondStereo.STEREOTRANS, Chem.BondStereo.STEREOE)
# Three neighbours of four, each turned so that their triple product is positive about a right centre.
_FACES = ((1, 2, 3), (2, 0, 3), (0, 1, 3), (1, 0, 2))

MIN_VOLUME = 0.1
"""Least triple product of the unit vectors from a stereocentre to any three neighbours: 0.77 in a regular
tetrahedron, at least 0.3 in the three-membered rings of the references, 0 where the centre is flat."""
MIN_PYRAMID = 0.3
"""The same for a centre with a lone pair, which RDKit reads as a square or a T when it is nearly flat."""
MIN_COSINE = 0.5
"""Least cosine of the angle by which a double bond may be twisted out of its plane (60 degrees)."""


def centres(mol: Chem.Mol) -> Iterator[tuple[int, list[int]]]:
    """Each specified stereocentre with its neighbours, in an order that turns the same way about all.

    The order is that of canonical ranks, its last two swapped where it turns the other way: seen from the
    first neighbour, the rest turn clockwise. The fourth of three neighbours (a sulfoxide) is a lone pair.
    """
    chosen = [atom for atom in mol.GetAtoms() if atom.GetChiralTag() in _TURNS]
    if not chosen:
        return
    ranks = list(Chem.CanonicalRankAtoms(mol, breakTies=True))
    for atom in chosen:
        neighbours = [other.GetIdx() for other in atom.GetNeighbors()]
        if len(neighbours) not in (3, 4):
            continue
        # RDKit's tag speaks of the neighbours in the order of the atom's bonds, which GetNeighbors follows.
        order = sorted(neighbours, key=lambda index: ranks[index])
        places = [neighbours.index(index) for index in order]
        odd = sum(a > b for k, a in enumerate(places) for b in places[k + 1 :]) % 2
        clockwise = (atom.GetChiralTag() == Chem.ChiralType.CHI_TETRAHEDRAL_CW) ^ bool(odd)
        if not clockwise:
            order[-2], order[-1] = order[-1], order[-2]
        yield atom.GetIdx(), order


def double_bonds(mol: Chem.Mol) -> Iterator[tuple[int, int, int, int, bool]]:
    """Each pair of substituents a, b across a specified double bond i=j, as (a, i, j, b, whether cis)."""
    for bond in mol.GetBonds():
        if bond.GetStereo() not in _CIS + _TRANS:
            continue
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        first, second = bond.GetStereoAtoms()
        for a in (atom.GetIdx() for atom in bond.GetBeginAtom().GetNeighbors() if atom.GetIdx() != j):
            for b in (atom.GetIdx() for atom in bond.GetEndAtom().GetNeighbors() if atom.GetIdx() != i):
                # Each change to the other substituent of an end turns cis into trans.
                yield a, i, j, b, (bond.GetStereo() in _CIS) ^ (a != first) ^ (b != second)


def stereo_kept(
    mol: Chem.Mol, positions: Float[np.ndarray, "conformers n 3"]
) -> Bool[np.ndarray, " conformers"]:
    """Whether each conformer has the stereochemistry that the molecule specifies; the rest is free.

    A centre must lie within the tetrahedron of its neighbours; flattened ones, and double bonds twisted by
    more than 60 degrees, count as wrong.
    """
    kept = np.ones(len(positions), bool)
    for centre, order in centres(mol):
        arms = _unit(positions[:, order] - positions[:, [centre]])
        # Seen from its first neighbour the others turn clockwise; with three, seen from the lone pair.
        triples, least = (_FACES, MIN_VOLUME) if len(order) == 4 else (((2, 1, 0),), MIN_PYRAMID)
        for triple in triples:
            kept &= _triple(*np.moveaxis(arms[:, triple], 1, 0)) > least
    for a, i, j, b, cis in double_bonds(mol):
        axis = _unit(positions[:, j] - positions[:, i])
        left, right = positions[:, a] - positions[:, i], positions[:, b] - positions[:, j]
        left = _unit(left - (left * axis).sum(-1, keepdims=True) * axis)
        right = _unit(right - (right * axis).sum(-1, keepdims=True) * axis)
        cosine = (left * right).sum(-1)
        kept &= (cosine if cis else -cosine) > MIN_COSINE
    return kept


def _unit(vectors: Float[np.ndarray, "*batch 3"]) -> Float[np.ndarray, "*batch 3"]:
    # Atoms on top of each other give zero vectors, whose volume fails the check.
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _triple(
    a: Float[np.ndarray, "k 3"], b: Float[np.ndarray, "k 3"], c: Float[np.ndarray, "k 3"]
) -> Float[np.ndarray, " k"]:
    return (a * np.cross(b, c)).sum(-1)
