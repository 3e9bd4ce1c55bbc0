"""What is read and what is refused, one line each (InputError), before anything is computed."""

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.molecules import (
    canonical_smiles,
    conformer_positions,
    read_file,
    read_molecule,
)


@pytest.mark.parametrize(
    ("smiles", "message"),
    [
        ("C1CC", "cannot be read: its syntax is wrong"),
        ("C[N](C)(C)(C)C", "Explicit valence for atom # 1 N, 5"),
        ("", "is empty"),
        ("CC.O", "has 2 fragments"),
        ("[Na+]", "single atom without bonds"),
        ("[He]", "element He"),
        ("*C", "element \\*"),
        ("C" * 70, "at most 200"),
        ("[NH3]->[Cu]", "dative bond"),
        ("C[S@TB1](F)(F)(Cl)N", "stereochemistry of the kind trigonalbipyramidal at atom 1"),
        ("CC=[C@]=CC", "stereochemistry of the kind axis at atom 2"),
    ],
)
def test_bad_smiles_are_refused_with_the_reason(smiles: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        read_molecule(smiles)
    assert "\n" not in str(caught.value)


def test_limits_of_a_network_are_enforced():
    with pytest.raises(InputError, match="element Br"):
        read_molecule("CBr", elements=("H", "C"))
    with pytest.raises(InputError, match="has 8 atoms with hydrogens; at most 7"):
        read_molecule("CC", max_atoms=7)
    assert read_molecule("CC", max_atoms=8).GetNumAtoms() == 8


def test_unsound_molecules_are_refused():
    mol = Chem.MolFromSmiles("CN(C)(C)C", sanitize=False)
    with pytest.raises(InputError, match="not sound"):
        read_molecule(mol)


def test_order_of_atoms_is_kept_and_hydrogens_come_last():
    mol = Chem.MolFromSmiles("OC(F)Cl")
    full = read_molecule(mol)
    assert [atom.GetSymbol() for atom in full.GetAtoms()] == ["O", "C", "F", "Cl", "H", "H"]
    assert mol.GetNumAtoms() == 4, "the caller's molecule is left alone"


def test_conformers_survive_where_no_hydrogen_is_added():
    mol = Chem.AddHs(Chem.MolFromSmiles("CCO"))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    assert np.allclose(conformer_positions(read_molecule(mol))[0], mol.GetConformer().GetPositions())
    assert read_molecule(Chem.RemoveHs(mol)).GetNumConformers() == 0


def test_coordinates_that_are_not_finite_are_refused():
    mol = Chem.AddHs(Chem.MolFromSmiles("C"))
    with pytest.raises(InputError, match="no conformer"):
        conformer_positions(mol)
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    mol.GetConformer().SetAtomPosition(0, [float("nan"), 0, 0])
    with pytest.raises(InputError, match="not finite"):
        conformer_positions(mol)


def test_files_of_smiles(tmp_path):
    path = tmp_path / "mols.smi"
    path.write_text("smiles name\n# remark\nCCO ethanol\n\nc1ccccc1\tbenzene ring\nCC\n")
    read = list(read_file(path))
    assert [name for name, _ in read] == ["ethanol", "benzene ring", "CC"]
    assert [canonical_smiles(mol) for _, mol in read] == ["CCO", "c1ccccc1", "CC"]


def test_a_bad_line_is_named_or_skipped(tmp_path):
    path = tmp_path / "mols.smi"
    path.write_text("CCO\nC1CC\nCC\n")
    with pytest.raises(InputError, match=r"mols.smi, line 2: SMILES 'C1CC'"):
        list(read_file(path))
    skipped: list[str] = []
    assert len(list(read_file(path, bad="skip", skipped=skipped))) == 2
    assert len(skipped) == 1
    assert "line 2" in skipped[0]


def test_files_that_hold_nothing_or_something_else(tmp_path):
    (tmp_path / "empty.smi").write_text("\n")
    (tmp_path / "binary.smi").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "mols.mol2").write_text("")
    (tmp_path / "broken.sdf").write_text("name\n\n\n  1  0 nonsense\nM  END\n$$$$\n")
    for name, message in (
        ("empty.smi", "holds no molecule"),
        ("binary.smi", "not text"),
        ("mols.mol2", "unknown suffix"),
        ("broken.sdf", "record 1: the record is damaged"),
        ("missing.smi", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            list(read_file(tmp_path / name))


def test_sdf_takes_its_stereochemistry_from_the_coordinates(tmp_path):
    mol = Chem.AddHs(Chem.MolFromSmiles("C[C@H](F)Cl"))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    mirrored = Chem.Mol(mol)
    mirrored.GetConformer().SetPositions(-mol.GetConformer().GetPositions())
    path = tmp_path / "mols.sdf"
    with Chem.SDWriter(str(path)) as writer:
        writer.write(mol)
        writer.write(mirrored)
    names = [canonical_smiles(mol) for _, mol in read_file(path)]
    assert names == ["C[C@H](F)Cl", "C[C@@H](F)Cl"]


def test_atropisomers_are_refused_as_no_conformer_is_checked_for_them():
    mol = Chem.MolFromSmiles("Cc1cccc(F)c1-c1c(C)cccc1Cl")
    assert read_molecule(mol).GetNumAtoms() == 28
    bond = mol.GetBondWithIdx(7)
    bond.SetStereoAtoms(1, 9)
    bond.SetStereo(Chem.BondStereo.STEREOATROPCW)
    with pytest.raises(InputError, match="is an atropisomer about bond 7"):
        read_molecule(mol)


def test_what_is_no_molecule_is_refused():
    with pytest.raises(InputError, match="a SMILES or an RDKit molecule, not 5"):
        read_molecule(5)


def test_extensions_of_smiles_are_no_names(tmp_path):
    (tmp_path / "a.smi").write_text("CCO |$a;b;c$| named one\nCCN |bar\n")
    assert [name for name, _ in read_file(tmp_path / "a.smi")] == ["named one", "|bar"]
    (tmp_path / "b.smi").write_text("Cc1cccc(F)c1-c1c(C)cccc1Cl |wU:7.7|\n")
    with pytest.raises(InputError, match=r"b\.smi, line 1: .* atropisomer"):
        list(read_file(tmp_path / "b.smi"))


def test_titles_in_latin_1_are_read(tmp_path):
    mol = Chem.AddHs(Chem.MolFromSmiles("CCO"))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    mol.SetProp("_Name", "TITLE")
    block = Chem.MolToMolBlock(mol).encode().replace(b"TITLE", b"\xe9thanol", 1)
    (tmp_path / "a.sdf").write_bytes(block + b"$$$$\n")
    assert [name for name, _ in read_file(tmp_path / "a.sdf")] == ["éthanol"]
