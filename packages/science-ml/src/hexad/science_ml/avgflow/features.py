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
from hexad.science_ml.avgflow.stereo import centres, double_bonds

CIS, TRANS, FIRST_NEIGHBOUR = 5, 6, 7

_HYBRIDIZATIONS = (
    Chem.HybridizationType.SP,
    Chem.HybridizationType.SP2,
    Chem.HybridizationType.SP3,
    Chem.HybridizationType.SP3D,
    Chem.HybridizationType.SP3D2,
)


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
        for a, _, _, b, cis in double_bonds(mol):
            # A bond between them (a ring of four) says more.
            if types[a, b] == 0:
                types[a, b] = types[b, a] = CIS if cis else TRANS
        for centre, order in centres(mol):
            types[centre, order] = FIRST_NEIGHBOUR + np.arange(len(order))
    return types
