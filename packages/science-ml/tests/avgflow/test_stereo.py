"""The check of stereochemistry, against RDKit's own perception from coordinates."""

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from hexad.science_ml.avgflow.ensembles import etkdg, with_conformers
from hexad.science_ml.avgflow.molecules import canonical_smiles, conformer_positions, read_molecule
from hexad.science_ml.avgflow.stereo import stereo_kept

SMILES = [
    "C[C@H](F)Cl",
    "C[C@@H](O)[C@H](N)C(=O)O",
    "C[S@](=O)CC",
    "CC[P@@](C)c1ccccc1",
    "C[C@H]1C[C@@H]1F",
    "C[C@]12CC[C@H](CC1)C2(C)C",
    "F/C=C/Cl",
    "F/C(Cl)=C(/Br)C",
    "C/C=C/[C@H](C)O",
    "O/N=C(C)/CC",
    "[2H][C@H](F)Cl",
]


def embedded(smiles: str, count: int = 5) -> Chem.Mol:
    mol = read_molecule(smiles)
    assert len(rdDistGeom.EmbedMultipleConfs(mol, count, etkdg(7))) == count
    return mol


@pytest.mark.parametrize("smiles", SMILES)
def test_embedded_conformers_pass_and_mirror_images_fail(smiles: str):
    mol = embedded(smiles)
    positions = conformer_positions(mol)
    assert stereo_kept(mol, positions).all()
    # A double bond is its own mirror image; a stereocentre is not.
    assert (stereo_kept(mol, -positions) == ("@" not in smiles)).all()


@pytest.mark.parametrize("smiles", [s for s in SMILES if "P@" not in s])
def test_agrees_with_rdkit_on_distorted_conformers(smiles: str):
    mol = embedded(smiles, 1)
    name = canonical_smiles(mol)
    rng = np.random.default_rng(0)
    frame = conformer_positions(mol)
    noisy = frame + rng.normal(size=(200, *frame.shape[1:])) * 0.2
    kept = stereo_kept(mol, noisy)
    seen = []
    for conformer in with_conformers(mol, noisy).GetConformers():
        copy = Chem.Mol(mol)
        copy.RemoveAllConformers()
        copy.AddConformer(conformer, assignId=True)
        Chem.AssignStereochemistryFrom3D(copy)
        seen.append(canonical_smiles(copy) == name)
    assert not (kept & ~np.array(seen)).any(), "never right where RDKit reads another isomer"
    # It is stricter, as RDKit takes flattened centres; at this noise it still keeps a good part.
    assert kept.sum() > 0.25 * sum(seen)


def test_one_wrong_centre_of_two_fails_mirrored_or_not():
    mol, other = embedded("C[C@@H](O)[C@H](N)C"), read_molecule("C[C@@H](O)[C@@H](N)C")
    positions = conformer_positions(mol)
    assert stereo_kept(mol, positions).all()
    assert not stereo_kept(other, positions).any()
    assert not stereo_kept(other, -positions).any()


def test_cis_is_no_trans():
    cis, trans = embedded("F/C=C\\Cl"), embedded("F/C=C/Cl")
    assert not stereo_kept(cis, conformer_positions(trans)).any()
    assert not stereo_kept(trans, conformer_positions(cis)).any()


def test_what_is_left_open_is_free_and_what_is_flat_fails():
    mol = embedded("C[C@H](F)Cl")
    open_one = read_molecule("CC(F)Cl")
    assert stereo_kept(open_one, -conformer_positions(mol)).all()
    flat = conformer_positions(mol) * np.array([1.0, 1.0, 0.0])
    assert not stereo_kept(mol, flat).any()
    assert not stereo_kept(mol, np.zeros_like(flat)).any(), "atoms on top of each other"
