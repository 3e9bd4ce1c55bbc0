"""Atom features, Laplacian encoding and edge types of a molecule."""

import numpy as np
import pytest
from rdkit import Chem

from hexad.science_ml.avgflow.batching import EDGE_TYPES, LAPLACIAN_FEATURES, NODE_FEATURES
from hexad.science_ml.avgflow.features import edge_types, featurize, laplacian_encoding
from hexad.science_ml.avgflow.molecules import ELEMENTS, read_molecule
from hexad.science_ml.avgflow.stereo import centres, double_bonds

STEREO = ["C[C@H](F)Cl", "F/C=C/Cl", "C[C@@H](O)[C@H](N)C(=O)O", "C[S@](=O)CC", "F/C(Cl)=C(/Br)C"]


def test_shapes_and_one_hots():
    graph = featurize(read_molecule("Oc1ccccc1"))
    assert graph.node_features.shape == (13, NODE_FEATURES) == (13, 75)
    assert graph.laplacian.shape == (13, LAPLACIAN_FEATURES)
    assert graph.edge_types.shape == (13, 13)
    hot = graph.node_features[:, :35]
    assert (hot.sum(axis=1) == 1).all()
    assert ELEMENTS[int(hot[0].argmax())] == "O"
    oxygen, carbon, hydrogen = graph.node_features[0], graph.node_features[1], graph.node_features[-1]
    assert (oxygen[35], carbon[35], hydrogen[35]) == pytest.approx((0.8, 0.6, 0.1))
    assert (oxygen[36], carbon[36]) == (0, 1), "aromatic"
    assert (oxygen[37], carbon[37], carbon[38 + 3]) == (1, 0, 1), "hydrogens and degree"
    # Six groups of one-hots of 8, 6, 8, 4 and 5 places, and six rings: sums are known.
    assert carbon[38:].sum() == 5 + 1, "one of each group and a ring of six"
    assert carbon[64 + 3] == 1


def test_bonds_are_typed_and_symmetric_without_stereo():
    types = edge_types(read_molecule("C=CC#Cc1ccccc1"), stereo=False)
    assert (types == types.T).all()
    assert [types[0, 1], types[1, 2], types[2, 3], types[4, 5], types[0, 2]] == [2, 1, 3, 4, 0]


@pytest.mark.parametrize("smiles", STEREO)
def test_graph_does_not_depend_on_the_order_of_atoms(smiles: str):
    mol = read_molecule(smiles)
    order = np.random.default_rng(0).permutation(mol.GetNumAtoms())
    shuffled = Chem.RenumberAtoms(mol, order.tolist())
    first, second = featurize(mol), featurize(shuffled)
    assert first.smiles == second.smiles
    assert (second.node_features == first.node_features[order]).all()
    placed = first.edge_types[np.ix_(order, order)]
    # Equal hydrogens of a group may change places; what pairs exist of each type may not.
    assert (np.sort(placed, axis=1) == np.sort(second.edge_types, axis=1)).all()


@pytest.mark.parametrize("smiles", STEREO)
def test_mirror_images_and_geometric_isomers_have_other_graphs(smiles: str):
    swapped = smiles.replace("@@", "?").replace("@", "@@").replace("?", "@")
    if swapped == smiles:
        swapped = smiles.replace("=C/", "=C\\").replace("=C(/", "=C(\\")
    mol, other = read_molecule(smiles), read_molecule(swapped)
    assert (edge_types(mol) != edge_types(other)).any()
    assert (edge_types(mol, stereo=False) == edge_types(other, stereo=False)).all()
    assert edge_types(mol).max() < EDGE_TYPES


def test_cis_and_trans_pairs():
    mol = read_molecule("F/C=C/Cl")
    types = edge_types(mol)
    hydrogens = [4, 5]
    assert types[0, 3] == types[3, 0] == 6, "F and Cl are trans"
    assert types[0, hydrogens[1]] == 5, "F and the hydrogen of the other end are cis"
    assert types[hydrogens[0], hydrogens[1]] == 6
    assert len(list(double_bonds(mol))) == 4
    assert not list(centres(mol))


def test_laplacian_encoding_solves_its_equation_and_follows_the_atoms():
    mol = read_molecule("CC(=O)Nc1ccc(O)cc1C")
    adjacency = Chem.GetAdjacencyMatrix(mol).astype(float)
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    laplacian = np.eye(len(adjacency)) - scale[:, None] * adjacency * scale
    vectors = laplacian_encoding(mol)[:, :20].astype(float)
    values = (vectors * (laplacian @ vectors)).sum(axis=0)
    assert np.abs(laplacian @ vectors - vectors * values).max() < 1e-6  # float32
    assert (np.diff(values) > -1e-6).all()
    assert values[0] > 1e-3
    # The first ones belong to simple eigenvalues, so they are determined up to the sign, which is fixed.
    order = np.random.default_rng(1).permutation(mol.GetNumAtoms())
    shuffled = laplacian_encoding(Chem.RenumberAtoms(mol, order.tolist()))
    assert np.abs(shuffled[:, :3] - laplacian_encoding(mol)[order, :3]).max() < 1e-5


def test_small_molecules_are_padded():
    encoding = laplacian_encoding(read_molecule("C"))
    assert np.abs(encoding[:, :4]).max() > 0.1
    assert (encoding[:, 4:] == 0).all()
