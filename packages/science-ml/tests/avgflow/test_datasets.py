"""A user's conformers as ensembles."""

import pickle

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDepictor

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.datasets import read_dataset
from hexad.science_ml.avgflow.ensembles import EmbedConfig, make_ensemble
from hexad.science_ml.avgflow.metrics import rmsd_matrix

SMALL = EmbedConfig(embeds=6)


def shuffled(mol: Chem.Mol, seed: int) -> Chem.Mol:
    order = np.random.default_rng(seed).permutation(mol.GetNumAtoms())
    return Chem.RenumberAtoms(mol, order.tolist())


def write_sdf(path, mols):
    with Chem.SDWriter(str(path)) as writer:
        for mol in mols:
            for conformer in mol.GetConformers():
                writer.write(mol, confId=conformer.GetId())


def test_records_of_one_molecule_make_one_ensemble_whatever_their_order(tmp_path):
    first, second = make_ensemble("C[C@H](F)CCO", SMALL), make_ensemble("c1ccccc1C=O", SMALL)
    write_sdf(
        tmp_path / "a.sdf", [shuffled(first.molecule(), 1), second.molecule(), shuffled(first.molecule(), 2)]
    )
    read = {ensemble.smiles: ensemble for ensemble in read_dataset(tmp_path / "a.sdf")}
    assert set(read) == {first.smiles, second.smiles}
    assert len(read[first.smiles]) == 2 * len(first)
    assert np.isnan(read[first.smiles].energies).all()
    # Each conformer is found again with its atoms in the order of the SMILES (coordinates have 4 decimals).
    apart = rmsd_matrix(first.molecule(), read[first.smiles].molecule())
    assert apart.min(axis=0).max() < 1e-3
    assert apart.min(axis=1).max() < 1e-3
    bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in first.molecule().GetBonds()]
    frame = read[first.smiles].positions[0]
    assert max(np.linalg.norm(frame[i] - frame[j]) for i, j in bonds) < 1.7


def test_mirror_images_are_two_ensembles(tmp_path):
    ensemble = make_ensemble("C[C@H](F)Cl", SMALL)
    mirrored = ensemble.molecule()
    for conformer in mirrored.GetConformers():
        conformer.SetPositions(-conformer.GetPositions())
    write_sdf(tmp_path / "a.sdf", [ensemble.molecule(), mirrored])
    assert {e.smiles for e in read_dataset(tmp_path / "a.sdf")} == {"C[C@H](F)Cl", "C[C@@H](F)Cl"}


def test_pickles_need_leave_and_warn(tmp_path):
    ensemble = make_ensemble("CCCO", SMALL)
    entries = []
    for number, conformer in enumerate(ensemble.molecule().GetConformers()):
        entries.append(
            {"rd_mol": Chem.Mol(ensemble.molecule(), confId=conformer.GetId()), "relativeenergy": -number}
        )
    (tmp_path / "CCCO.pickle").write_bytes(pickle.dumps({"smiles": "CCCO", "conformers": entries}))
    for path in (tmp_path / "CCCO.pickle", tmp_path):
        with pytest.raises(InputError, match="allow-pickle"):
            read_dataset(path)
        with pytest.warns(UserWarning, match="may run any code"):
            read = read_dataset(path, allow_pickle=True)
        assert [e.smiles for e in read] == ["CCCO"]
        assert (np.diff(read[0].energies) > 0).all(), "the lowest energy first"
        assert np.allclose(read[0].positions[::-1], ensemble.positions, atol=1e-5)


def test_what_cannot_be_trained_on_is_named(tmp_path):
    ensemble = make_ensemble("CCCO", SMALL)
    write_sdf(tmp_path / "heavy.sdf", [Chem.RemoveHs(ensemble.molecule())])
    flat = Chem.AddHs(Chem.MolFromSmiles("CCO"))
    rdDepictor.Compute2DCoords(flat)
    write_sdf(tmp_path / "flat.sdf", [flat])
    squeezed = ensemble.molecule()
    squeezed.GetConformer().SetPositions(0.2 * squeezed.GetConformer().GetPositions())
    write_sdf(tmp_path / "squeezed.sdf", [squeezed])
    (tmp_path / "a.csv").write_text("CCO\n")
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps([1, 2]))
    (tmp_path / "none").mkdir()
    for name, message in (
        ("heavy.sdf", "lacks hydrogens"),
        ("flat.sdf", "flat .2D. coordinates"),
        ("squeezed.sdf", "record 1 .*: two atoms of CCCO are 0.* Angstrom apart"),
        ("a.csv", "unknown suffix"),
        ("missing.sdf", "does not exist"),
        ("none", "holds no .pickle"),
    ):
        with pytest.raises(InputError, match=message):
            read_dataset(tmp_path / name)
    with pytest.warns(UserWarning, match="any code"), pytest.raises(InputError, match="no GEOM pickle"):
        read_dataset(tmp_path / "bad.pkl", allow_pickle=True)
