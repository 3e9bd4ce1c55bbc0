"""Coverage, mean RMSD and energies."""

import math

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdMolAlign

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.ensembles import etkdg, with_conformers
from hexad.science_ml.avgflow.metrics import (
    ConformerMetrics,
    conformer_metrics,
    mean_metrics,
    metrics_of,
    mmff_energies,
    relax,
    rmsd_matrix,
)
from hexad.science_ml.avgflow.molecules import conformer_positions, read_molecule
from hexad.science_ml.avgflow.rotations import random_rotations


def embedded(smiles: str, count: int, seed: int = 1) -> Chem.Mol:
    mol = read_molecule(smiles)
    rdDistGeom.EmbedMultipleConfs(mol, count, etkdg(seed))
    return mol


def test_matrix_is_get_best_rms_of_each_pair():
    reference, generated = embedded("CCOC(C)(C)C", 3), embedded("CCOC(C)(C)C", 5, seed=2)
    left, right = Chem.RemoveHs(reference), Chem.RemoveHs(generated)
    expected = [[rdMolAlign.GetBestRMS(Chem.Mol(right), left, j, i) for j in range(5)] for i in range(3)]
    assert np.abs(rmsd_matrix(reference, generated) - expected).max() < 1e-9


def test_rotation_symmetry_and_numbering_cost_nothing():
    mol = embedded("Cc1ccc(C(F)(F)F)cc1", 2)
    positions = conformer_positions(mol)
    turned = positions @ random_rotations(2, dtype=torch.float64).numpy() + 5.0
    assert np.abs(np.diag(rmsd_matrix(mol, with_conformers(mol, turned)))).max() < 1e-6
    order = np.random.default_rng(0).permutation(mol.GetNumAtoms())
    assert np.abs(np.diag(rmsd_matrix(mol, Chem.RenumberAtoms(mol, order.tolist())))).max() < 1e-6
    # Hydrogens do not count.
    hydrogens = np.array([atom.GetAtomicNum() == 1 for atom in mol.GetAtoms()])
    moved = positions + hydrogens[:, None]
    assert np.abs(np.diag(rmsd_matrix(mol, with_conformers(mol, moved)))).max() < 1e-6


def test_mirror_images_are_apart():
    mol = embedded("C[C@H](F)Cl", 1)
    mirrored = with_conformers(mol, -conformer_positions(mol))
    assert rmsd_matrix(mol, mirrored)[0, 0] > 0.3


def test_numbers_of_a_known_matrix():
    rmsd = np.array([[0.1, 0.6, 0.9, 2.0], [0.7, 0.4, 1.0, 3.0]])
    found = metrics_of(rmsd, 0.5)
    assert found == ConformerMetrics(1.0, pytest.approx(0.25), 0.5, pytest.approx(0.85))
    assert metrics_of(rmsd, 0.25).cov_r == 0.5
    assert metrics_of(rmsd, 0.5, requested=8).cov_p == 0.25
    assert metrics_of(rmsd, 0.4).cov_r == 0.5, "strictly below"


def test_failures_lower_coverage_and_leave_the_mean_rmsd():
    mol = embedded("CCCO", 4)
    perfect = conformer_metrics(mol, mol, 0.5)
    assert perfect.cov_r == perfect.cov_p == 1.0
    assert perfect.amr_r == perfect.amr_p == pytest.approx(0, abs=1e-6)
    empty = Chem.Mol(mol)
    empty.RemoveAllConformers()
    nothing = conformer_metrics(mol, empty, 0.5, requested=8)
    assert (nothing.cov_r, nothing.cov_p) == (0, 0)
    assert math.isnan(nothing.amr_r)
    mean = mean_metrics([perfect, nothing])
    assert mean.cov_r == 0.5
    assert mean.amr_r == pytest.approx(0, abs=1e-6)
    assert conformer_metrics(mol, mol, 0.5, requested=8).cov_p == 0.5


def test_bad_input_is_refused():
    mol = embedded("CCCO", 2)
    broken = with_conformers(mol, conformer_positions(mol))
    broken.GetConformer(1).SetAtomPosition(0, [float("nan"), 0, 0])
    for call, message in (
        (lambda: rmsd_matrix(mol, embedded("CCCN", 1)), "the reference is CCCO, the generated molecule CCCN"),
        (lambda: rmsd_matrix(mol, broken), "not finite"),
        (lambda: rmsd_matrix(read_molecule("CCCO"), mol), "reference molecule has no conformers"),
        (lambda: conformer_metrics(mol, mol, 0.0), "delta"),
        (lambda: conformer_metrics(mol, mol, requested=1), "requested is 1"),
        (lambda: mean_metrics([]), "no molecules"),
        (lambda: mmff_energies(read_molecule("CCCO")), "has no conformer"),
        (lambda: mmff_energies(embedded("CB(O)O", 1)), "no parameters for CB"),
        (lambda: relax(mol, 0), "iterations"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_relaxing_lowers_the_energy_and_leaves_the_original():
    mol = embedded("CCCCCO", 3)
    before = mmff_energies(mol)
    relaxed, energies = relax(mol, 1000)
    assert (energies < before - 0.5).all()
    assert np.abs(mmff_energies(relaxed) - energies).max() < 1e-6
    assert (mmff_energies(mol) == before).all()


def test_relaxing_removes_what_becomes_another_stereoisomer():
    mol = embedded("C[C@H](N)C(=O)O", 3)
    mol.GetConformer(1).SetPositions(-mol.GetConformer(1).GetPositions())
    relaxed, energies = relax(mol, 500)
    assert [conformer.GetId() for conformer in relaxed.GetConformers()] == [0, 2]
    assert mol.GetNumConformers() == 3
    assert np.abs(mmff_energies(relaxed) - energies).max() < 1e-6


def test_what_mmff_cannot_relax_is_refused():
    mol = embedded("CCO", 1)
    with pytest.raises(InputError, match="lacks hydrogens"):
        relax(Chem.RemoveHs(mol))
    mol.GetConformer().SetAtomPosition(0, (math.nan, 0, 0))
    with pytest.raises(InputError, match="not finite"):
        relax(mol)
    with pytest.raises(InputError, match="needs an RDKit molecule"):
        relax("CCO")
