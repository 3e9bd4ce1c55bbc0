"""Molecules at the door: SMILES, SDF or RDKit molecules, checked, with all hydrogens."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from rdkit import Chem, rdBase

from hexad.core.errors import InputError
from hexad.core.validation import check_file

MAX_ATOMS = 200
"""Hydrogens included; the size that the paper pads to."""

# The 35 elements of GEOM-Drugs, in the order of the one-hot feature.
ELEMENTS = (
    "H", "Li", "B", "C", "N", "O", "F", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "K", "Ca", "V", "Cr", "Mn",
    "Cu", "Zn", "Ga", "Ge", "As", "Se", "Br", "Ag", "In", "Sb", "I", "Gd", "Pt", "Au", "Hg", "Bi",
)  # fmt: skip

BOND_TYPES = {
    Chem.BondType.SINGLE: 1,
    Chem.BondType.DOUBLE: 2,
    Chem.BondType.TRIPLE: 3,
    Chem.BondType.AROMATIC: 4,
}
SUFFIXES = (".smi", ".smiles", ".txt", ".sdf")
_KNOWN_CENTRES = (
    Chem.ChiralType.CHI_UNSPECIFIED,
    Chem.ChiralType.CHI_TETRAHEDRAL_CW,
    Chem.ChiralType.CHI_TETRAHEDRAL_CCW,
)
_ATROPISOMERS = (Chem.BondStereo.STEREOATROPCW, Chem.BondStereo.STEREOATROPCCW)


def read_molecule(
    source: str | Chem.Mol,
    *,
    max_atoms: int = MAX_ATOMS,
    elements: tuple[str, ...] = ELEMENTS,
    where: str = "",
) -> Chem.Mol:
    """A checked copy of the molecule with all its hydrogens, in the given order, added ones at the end.

    Conformers of the source are kept where it has all its hydrogens, and dropped where some are added.

    Args:
        source: a SMILES or an RDKit molecule.
        max_atoms: refuse more, hydrogens included.
        elements: refuse others.
        where: put before the messages, such as `"mols.smi, line 3"`.

    Raises:
        InputError: unparsable, in several fragments, without bonds, too large, or with an element, a kind of
            bond or a kind of stereochemistry (axes; other shapes than the tetrahedron) that the features do
            not know.
    """
    where = f"{where}: " if where else ""
    if not isinstance(source, (str, Chem.Mol)):
        raise InputError(f"{where}a molecule is a SMILES or an RDKit molecule, not {source!r:.60}")
    mol = _parse(source, where) if isinstance(source, str) else Chem.Mol(source)
    if not isinstance(source, str):
        with rdBase.BlockLogs():
            problems = Chem.DetectChemistryProblems(mol)
        if problems:
            raise InputError(f"{where}the molecule is not sound: {problems[0].Message()}")
        Chem.SanitizeMol(mol)
        Chem.AssignStereochemistry(mol, cleanIt=False, force=True)
    if mol.GetNumAtoms() == 0:
        raise InputError(f"{where}the molecule is empty; give one with at least two bonded atoms")
    name = canonical_smiles(mol)
    unknown = sorted({a.GetSymbol() for a in mol.GetAtoms()} - set(elements))
    if unknown:
        raise InputError(f"{where}{name} holds the element {unknown[0]}; known are {' '.join(elements)}")
    for bond in mol.GetBonds():
        if bond.GetBondType() not in BOND_TYPES:
            kind = str(bond.GetBondType()).lower()
            raise InputError(
                f"{where}{name} holds a {kind} bond; single, double, triple or aromatic are known"
            )
    _check_stereo(mol, f"{where}{name}")
    fragments = len(Chem.GetMolFrags(mol))
    if fragments > 1:
        raise InputError(f"{where}{name} has {fragments} fragments; give one molecule (drop salts, solvent)")
    full = Chem.AddHs(mol)
    if full.GetNumAtoms() > mol.GetNumAtoms():
        full.RemoveAllConformers()
    if full.GetNumAtoms() < 2 or full.GetNumBonds() == 0:
        raise InputError(f"{where}{name} is a single atom without bonds; it has no conformers")
    if full.GetNumAtoms() > max_atoms:
        raise InputError(
            f"{where}{name} has {full.GetNumAtoms()} atoms with hydrogens; at most {max_atoms} are possible"
        )
    return full


def _parse(smiles: str, where: str) -> Chem.Mol:
    """The molecule of a SMILES, or an `InputError` with RDKit's reason in one line."""
    text = smiles.strip()
    if not text:
        raise InputError(f"{where}the SMILES is empty")
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(text)
        raw = None if mol is not None and "@" not in text else Chem.MolFromSmiles(text, sanitize=False)
        if mol is not None:
            if raw is not None:
                _check_stereo(raw, f"{where}{text}")
            return mol
        problems = () if raw is None else Chem.DetectChemistryProblems(raw)
    reason = problems[0].Message() if problems else "its syntax is wrong"
    raise InputError(f"{where}SMILES {text!r} cannot be read: {reason.rstrip('.')}")


def _check_stereo(mol: Chem.Mol, what: str) -> None:
    """Refuse stereochemistry that no conformer would be checked for: it would be lost without a word."""
    for atom in mol.GetAtoms():
        # A SMILES may turn the middle of an allene by the tag of a tetrahedron, which sanitising drops.
        axis = atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED and atom.GetTotalDegree() == 2
        if axis or atom.GetChiralTag() not in _KNOWN_CENTRES:
            kind = "axis" if axis else str(atom.GetChiralTag()).removeprefix("CHI_").lower()
            raise InputError(
                f"{what} specifies stereochemistry of the kind {kind} at atom {atom.GetIdx()}; known are "
                "tetrahedra and double bonds"
            )
    for bond in mol.GetBonds():
        if bond.GetStereo() in _ATROPISOMERS:
            raise InputError(
                f"{what} is an atropisomer about bond {bond.GetIdx()}; known are tetrahedra and double bonds"
            )


def canonical_smiles(mol: Chem.Mol) -> str:
    """Canonical SMILES without explicit hydrogens, stereochemistry included."""
    with rdBase.BlockLogs():  # RDKit speaks of each hydrogen that it must keep
        return Chem.MolToSmiles(Chem.RemoveHs(mol, sanitize=False))


def conformer_positions(mol: Chem.Mol) -> Float[np.ndarray, "conformers n 3"]:
    """Coordinates in Angstrom of all conformers, in the order of their appearance.

    Raises:
        InputError: there is none, one is flat, or one is not finite.
    """
    if mol.GetNumConformers() == 0:
        raise InputError(f"{canonical_smiles(mol)} has no conformer")
    positions = np.stack([conformer.GetPositions() for conformer in mol.GetConformers()])
    if not np.isfinite(positions).all():
        raise InputError(f"{canonical_smiles(mol)} has coordinates that are not finite")
    return positions


def read_file(
    path: str | Path,
    *,
    max_atoms: int = MAX_ATOMS,
    elements: tuple[str, ...] = ELEMENTS,
    bad: Literal["raise", "skip"] = "raise",
    skipped: list[str] | None = None,
) -> Iterator[tuple[str, Chem.Mol]]:
    """Names and checked molecules of a file of SMILES (`.smi`, `.smiles`, `.txt`) or an `.sdf`.

    A line of SMILES is the SMILES, its extension between bars (CXSMILES) if any and, after white space, a
    name; empty lines, lines that begin with `#` and a heading `smiles` are passed over. Stereochemistry that
    is marked as relative or racemic is taken as it is drawn. Conformers of an SDF are kept, and its
    stereochemistry is theirs.

    Args:
        path: the file.
        max_atoms: as in `read_molecule`, as the next.
        elements: as in `read_molecule`.
        bad: whether a molecule that cannot be used is an error or is left out.
        skipped: takes the messages of those left out.

    Raises:
        InputError: no such file, an unknown suffix, no molecule in it, or a bad one (`bad="raise"`).
    """
    file = check_file(path, "molecule file")
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"molecule file {file} has an unknown suffix; known: {', '.join(SUFFIXES)}")
    records = _sdf_records(file) if file.suffix.lower() == ".sdf" else _smiles_records(file)
    count = 0
    for where, name, source in records:
        count += 1
        try:
            if source is None:
                raise InputError(f"{where}: the record is damaged, or no sound molecule")
            mol = read_molecule(source, max_atoms=max_atoms, elements=elements, where=where)
        except InputError as error:
            if bad == "raise":
                raise
            if skipped is not None:
                skipped.append(str(error))
            continue
        yield name or canonical_smiles(mol), mol
    if count == 0:
        raise InputError(f"molecule file {file} holds no molecule")


def _smiles_records(file: Path) -> Iterator[tuple[str, str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"molecule file {file} is not text; give SMILES, one a line") from None
    for number, line in enumerate(lines, start=1):
        smiles, _, name = line.strip().partition(" ") if "\t" not in line else line.strip().partition("\t")
        if not smiles or smiles.startswith("#") or (number == 1 and smiles.lower().rstrip(",") == "smiles"):
            continue
        name = name.strip()
        if name.startswith("|") and "|" in name[1:]:
            extension, _, name = name[1:].partition("|")
            smiles = f"{smiles} |{extension}|"
        yield f"{file.name}, line {number}", name.strip(), smiles


def _sdf_records(file: Path) -> Iterator[tuple[str, str, Chem.Mol | None]]:
    content = file.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:  # titles of older programs
        content = content.decode("latin-1").encode("utf-8")
    with rdBase.BlockLogs():
        supplier = Chem.ForwardSDMolSupplier(io.BytesIO(content), removeHs=False)
        for number, mol in enumerate(supplier, start=1):
            if mol is not None and mol.GetNumConformers() and mol.GetConformer().Is3D():
                Chem.AssignStereochemistryFrom3D(mol)
            name = mol.GetProp("_Name").strip() if mol is not None and mol.HasProp("_Name") else ""
            yield f"{file.name}, record {number}", name, mol
