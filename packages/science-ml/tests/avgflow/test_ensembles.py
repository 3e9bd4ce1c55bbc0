"""Reference ensembles: how they are made, kept and split."""

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdForceFieldHelpers

from hexad.core.errors import InputError
from hexad.science_ml.avgflow import library
from hexad.science_ml.avgflow.ensembles import (
    EmbedConfig,
    Ensemble,
    fits,
    make_ensemble,
    packaged_smiles,
    split_of,
    with_conformers,
)
from hexad.science_ml.avgflow.metrics import mmff_energies, rmsd_matrix
from hexad.science_ml.avgflow.molecules import read_molecule

SMALL = EmbedConfig(embeds=6)


def test_an_ensemble_is_relaxed_sorted_pruned_and_centred():
    ensemble = make_ensemble("CCCCO", EmbedConfig(embeds=12))
    mol = ensemble.molecule()
    assert len(ensemble) >= 3
    assert ensemble.atoms == mol.GetNumAtoms() == 15
    assert (np.diff(ensemble.energies) >= 0).all()
    assert np.abs(mmff_energies(mol) - ensemble.energies).max() < 1e-3  # positions are float32
    assert np.abs(ensemble.positions.mean(axis=1)).max() < 1e-5
    apart = rmsd_matrix(mol, mol) + 10 * np.eye(len(ensemble))
    assert apart.min() >= 0.3 - 1e-4
    relaxed = Chem.Mol(mol)
    rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(relaxed)
    assert np.abs(mmff_energies(relaxed) - ensemble.energies).max() < 1e-2, "nothing is left to relax"


def test_ensembles_are_the_same_again_and_open_stereochemistry_is_settled():
    first, second = make_ensemble("CC(F)C=CCl", SMALL), make_ensemble("CC(F)C=CCl", SMALL)
    assert first.smiles == second.smiles
    assert np.array_equal(first.positions, second.positions)
    assert "@" in first.smiles
    assert "/" in first.smiles


def test_molecules_that_cannot_be_relaxed_are_refused():
    with pytest.raises(InputError, match="no MMFF94 parameters"):
        make_ensemble("CB(O)O", SMALL)
    with pytest.raises(InputError, match="fragments"):
        make_ensemble("CC.O", SMALL)
    for bad in ({"embeds": 0}, {"prune": -1.0}, {"prune": float("nan")}):
        with pytest.raises(InputError, match=next(iter(bad))):
            EmbedConfig(**bad)


def test_packaged_molecules():
    smiles = packaged_smiles()
    assert len(smiles) == 2114
    mols = [Chem.MolFromSmiles(text) for text in smiles]
    card = [
        mol
        for mol in mols
        if fits(mol, heavy=(6, 14), rotatable=(1, 5)) and "Br" not in {a.GetSymbol() for a in mol.GetAtoms()}
    ]
    assert len(card) == 1527
    sides = [split_of(text) for text in smiles]
    assert 200 < sides.count("test") < 330, "about one in eight"
    assert split_of("C[C@H](F)Cl") == split_of("C[C@@H](F)Cl") == split_of("CC(F)Cl")


def test_conformers_of_the_wrong_shape_or_with_nan_are_refused():
    mol = read_molecule("CO")
    with pytest.raises(InputError, match=r"shape \(1, 5, 3\); they must be \(conformers, 6, 3\)"):
        with_conformers(mol, np.zeros((1, 5, 3)))
    with pytest.raises(InputError, match="shape"):
        with_conformers(mol, np.zeros((6, 3)))
    with pytest.raises(InputError, match="not finite"):
        with_conformers(mol, np.full((1, 6, 3), np.inf))


def test_library_is_made_once_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "PART", 3)
    made: list[str] = []
    original = library.make_ensemble

    def counted(smiles: str, config: EmbedConfig) -> Ensemble:
        made.append(smiles)
        if len(made) == 5:
            raise KeyboardInterrupt
        return original(smiles, config)

    monkeypatch.setattr(library, "make_ensemble", counted)
    with pytest.raises(KeyboardInterrupt):
        library.load_ensembles(6, config=SMALL, folder=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    told: list[float] = []
    first = library.load_ensembles(6, config=SMALL, folder=tmp_path, progress=lambda f, note: told.append(f))
    assert len(made) == 5 + 3, "the part that was whole is not made again"
    assert told == [1.0]
    again = library.load_ensembles(6, config=SMALL, folder=tmp_path)
    assert len(made) == 8
    assert [e.smiles for e in first] == [e.smiles for e in again]
    assert all(np.array_equal(a.positions, b.positions) for a, b in zip(first, again, strict=True))
    assert first[0].smiles == "CC1=CC(=O)C=CC1=O"


def test_files_of_ensembles_round_trip_and_damage_is_named(tmp_path):
    ensembles = [make_ensemble("CCO", SMALL), make_ensemble("CCCC", SMALL)]
    library.write_ensembles(tmp_path / "a.npz", ensembles)
    for first, second in zip(ensembles, library.read_ensembles(tmp_path / "a.npz"), strict=True):
        assert first.smiles == second.smiles
        assert np.array_equal(first.positions, second.positions)
        assert np.array_equal(first.energies, second.energies)
    library.write_ensembles(tmp_path / "none.npz", [])
    assert library.read_ensembles(tmp_path / "none.npz") == []
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(InputError, match="holds no ensembles"):
        library.read_ensembles(tmp_path / "b.npz")
    with pytest.raises(InputError, match="count"):
        library.load_ensembles(0, folder=tmp_path)
