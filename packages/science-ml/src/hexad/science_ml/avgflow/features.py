"""What the network sees of a molecule: atom features, positions in the graph, bonds and stereochemistry.

The 75 atom features and the Laplacian encoding are those of AvgFlow (arXiv 2507.09785, after GeoMol). The
released network knows no stereochemistry and mirrors its samples afterwards; here pairs of atoms carry it:
cis and trans across double bonds, and the turn of the neighbours about each stereocentre.
"""

import numpy as np
from jaxtyping import Float, Int
from rdkit import Chem

from hexad.science_ml.avgflow.batching import LAPLACIAN_FEATURES, MoleculeGraph
from hexad.science_ml.avgflow.molecules import BOND_TYPES, ELEMENTS, canonical_smiles

CIS, TRANS, FIRST_NEIGHBOUR = 5, 6, 7

_HYBRIDIZATIONS = (
    Chem.HybridizationType.SP,
    Chem.HybridizationType.SP2,
    Chem.HybridizationType.SP3,
    Chem.HybridizationType.SP3D,
    Chem.HybridizationType.SP3D2,
)
_TURNS = (Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW)


def featurize(mol: Chem.Mol, *, stereo: bool = True) -> MoleculeGraph:
    """The graph of a molecule that `read_molecule` checked.

    Args:
        mol: with explicit hydrogens.
        stereo: mark stereocentres and double bonds (`edge_types` from 5 on).
    """
    return MoleculeGraph(
        canonical_smiles(mol),
        np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()]),
        atom_features(mol),
        laplacian_encoding(mol),
        edge_types(mol, stereo=stereo),
    )


def _one_hot(value: object, known: tuple, other: bool = True) -> list[float]:
    """One place for each known value, and one for any other."""
    hot = [float(value == item) for item in known]
    return [*hot, float(value not in known)] if other else hot


def atom_features(mol: Chem.Mol) -> Float[np.ndarray, "n 75"]:
    """Features of each atom.

    In order: element (35), atomic number / 10, aromatic, hydrogens, degree 0 to 6 or other (8), hybridisation
    (6), valence 0 to 6 or other (8), charge -1, 0, 1 or other (4), member of a ring of 3 to 8 atoms (6),
    number of rings 0 to 3 or other (5). With explicit hydrogens the implicit valence of the released code is
    0 everywhere; the whole valence is used in its place.
    """
    rings = mol.GetRingInfo()
    rows = []
    for atom in mol.GetAtoms():
        index = atom.GetIdx()
        rows.append(
            [
                *_one_hot(atom.GetSymbol(), ELEMENTS, other=False),
                atom.GetAtomicNum() / 10,
                float(atom.GetIsAromatic()),
                float(atom.GetTotalNumHs(includeNeighbors=True)),
                *_one_hot(atom.GetDegree(), tuple(range(7))),
                *_one_hot(atom.GetHybridization(), _HYBRIDIZATIONS),
                *_one_hot(atom.GetTotalValence(), tuple(range(7))),
                *_one_hot(atom.GetFormalCharge(), (-1, 0, 1)),
                *(float(rings.IsAtomInRingOfSize(index, size)) for size in range(3, 9)),
                *_one_hot(rings.NumAtomRings(index), (0, 1, 2, 3)),
            ]
        )
    return np.array(rows, np.float32)


def laplacian_encoding(mol: Chem.Mol) -> Float[np.ndarray, "n 32"]:
    """Eigenvectors of the normalised Laplacian to the smallest eigenvalues but the first, zero-padded.

    An eigenvector has no sign of its own; the released code draws it at random for each run. Here the sum of
    cubes is made positive, which depends neither on chance nor on the order of the atoms.
    """
    adjacency = Chem.GetAdjacencyMatrix(mol).astype(float)
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    n = len(adjacency)
    _, vectors = np.linalg.eigh(np.eye(n) - scale[:, None] * adjacency * scale)
    chosen = vectors[:, 1 : 1 + LAPLACIAN_FEATURES]
    chosen = chosen * np.where((chosen**3).sum(axis=0) < 0, -1.0, 1.0)
    encoding = np.zeros((n, LAPLACIAN_FEATURES), np.float32)
    encoding[:, : chosen.shape[1]] = chosen
    return encoding


def edge_types(mol: Chem.Mol, *, stereo: bool = True) -> Int[np.ndarray, "n n"]:
    """The type of each pair of atoms, as `hexad.science_ml.avgflow.batching.EDGE_TYPES` lists them."""
    n = mol.GetNumAtoms()
    types = np.zeros((n, n), np.int64)
    for bond in mol.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        types[i, j] = types[j, i] = BOND_TYPES[bond.GetBondType()]
    if stereo:
        _mark_double_bonds(mol, types)
        _mark_centres(mol, types)
    return types


def _mark_double_bonds(mol: Chem.Mol, types: Int[np.ndarray, "n n"]) -> None:
    """Mark the substituents at both ends of each double bond of known geometry as cis or trans."""
    cis_names = (Chem.BondStereo.STEREOCIS, Chem.BondStereo.STEREOZ)
    trans_names = (Chem.BondStereo.STEREOTRANS, Chem.BondStereo.STEREOE)
    for bond in mol.GetBonds():
        if bond.GetStereo() not in cis_names + trans_names:
            continue
        begin, end = bond.GetBeginAtom(), bond.GetEndAtom()
        first, second = bond.GetStereoAtoms()
        same_side = bond.GetStereo() in cis_names
        for a in (atom.GetIdx() for atom in begin.GetNeighbors() if atom.GetIdx() != end.GetIdx()):
            for b in (atom.GetIdx() for atom in end.GetNeighbors() if atom.GetIdx() != begin.GetIdx()):
                # Each change to the other substituent of an end turns cis into trans.
                cis = same_side ^ (a != first) ^ (b != second)
                # A bond between them (a ring of four) says more.
                if types[a, b] == 0:
                    types[a, b] = types[b, a] = CIS if cis else TRANS


def _mark_centres(mol: Chem.Mol, types: Int[np.ndarray, "n n"]) -> None:
    """Number the neighbours of each stereocentre so that, seen from the first, the rest turn clockwise.

    The order is that of canonical ranks, its last two swapped where it turns the other way; a centre with
    three neighbours (a sulfoxide) has its lone pair in the fourth place.
    """
    centres = [atom for atom in mol.GetAtoms() if atom.GetChiralTag() in _TURNS]
    if not centres:
        return
    ranks = list(Chem.CanonicalRankAtoms(mol, breakTies=True))
    for atom in centres:
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
        for place, index in enumerate(order):
            types[atom.GetIdx(), index] = FIRST_NEIGHBOUR + place
