"""A user's own conformers as ensembles: an SDF, or GEOM's pickles where the user trusts them."""

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rdkit import Chem
from scipy.spatial.distance import pdist

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.science_ml.avgflow.ensembles import Ensemble
from hexad.science_ml.avgflow.molecules import (
    ELEMENTS,
    MAX_ATOMS,
    canonical_smiles,
    conformer_positions,
    read_file,
    read_molecule,
)

CLOSEST = 0.4
"""Angstrom between two atoms of a conformer at least; hydrogen's bond to itself is 0.74 long."""
PICKLES = (".pickle", ".pkl")


def read_dataset(
    path: str | Path,
    *,
    max_atoms: int = MAX_ATOMS,
    elements: tuple[str, ...] = ELEMENTS,
    allow_pickle: bool = False,
) -> list[Ensemble]:
    """Ensembles of an SDF with 3D records, or of GEOM's pickles (one file, or a folder of them).

    Records of one molecule and stereoisomer make one ensemble, wherever they stand; the stereochemistry is
    that of the coordinates. The energies of an SDF are not read (NaN); GEOM's relative ones are kept.

    Args:
        path: `.sdf`, `.pickle`, `.pkl`, or a folder of pickles.
        max_atoms: refuse more, hydrogens included.
        elements: refuse others.
        allow_pickle: read pickles, which run whatever code their author put in.

    Raises:
        InputError: no such file, an unknown suffix, pickles without leave, a molecule that `read_molecule`
            refuses, or a record without all hydrogens or without 3D coordinates.
    """
    path = Path(path)
    pickles = _pickles(path)
    if pickles and not allow_pickle:
        raise InputError(
            f"{path} is a pickle, which can run any code when it is read; pass --allow-pickle "
            "(allow_pickle=True) if you trust its author"
        )
    if not pickles and check_file(path, "data set").suffix.lower() != ".sdf":
        raise InputError(f"data set {path} has an unknown suffix; known: .sdf, {', '.join(PICKLES)}")
    records = _pickled(pickles, max_atoms, elements) if pickles else _sdf(path, max_atoms, elements)
    found: dict[str, tuple[list[np.ndarray], list[float]]] = {}
    for where, mol, energies in records:
        seen = Chem.Mol(mol)
        Chem.AssignStereochemistryFrom3D(seen)
        name = canonical_smiles(seen)
        frames, levels = found.setdefault(name, ([], []))
        frames.append(_in_order(seen, name, where))
        levels.extend(energies)
    return [_ensemble(name, *parts) for name, parts in found.items()]


def _ensemble(name: str, frames: list[np.ndarray], levels: list[float]) -> Ensemble:
    positions, energies = np.concatenate(frames), np.array(levels)
    order = np.argsort(energies, kind="stable")
    positions = positions[order] - positions[order].mean(axis=1, keepdims=True)
    return Ensemble(name, positions.astype(np.float32), energies[order])


def _in_order(mol: Chem.Mol, name: str, where: str) -> np.ndarray:
    """The coordinates of all conformers, atoms renumbered as in `read_molecule(name)`."""
    order = mol.GetSubstructMatch(read_molecule(name), useChirality=True)
    if len(order) != mol.GetNumAtoms():
        raise InputError(
            f"{where}: {name} cannot be matched to its own SMILES; write it with another program"
        )
    positions = conformer_positions(mol)[:, list(order)]
    nearest = min(float(pdist(frame).min()) for frame in positions)
    if nearest < CLOSEST:
        raise InputError(
            f"{where}: two atoms of {name} are {nearest:.2g} Angstrom apart; its coordinates are wrong"
        )
    return positions


def _sdf(
    path: Path, max_atoms: int, elements: tuple[str, ...]
) -> Iterator[tuple[str, Chem.Mol, list[float]]]:
    for number, (name, mol) in enumerate(read_file(path, max_atoms=max_atoms, elements=elements), start=1):
        where = f"{path.name}, record {number} ({name})"
        # `read_molecule` drops the coordinates of a molecule to which it must add hydrogens.
        if mol.GetNumConformers() == 0:
            raise InputError(f"{where} lacks hydrogens or coordinates; all atoms are needed in 3D")
        if not mol.GetConformer().Is3D():
            raise InputError(f"{where} has flat (2D) coordinates; conformers are needed")
        yield where, mol, [float("nan")]


def _pickles(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in PICKLES)
        if not found:
            raise InputError(
                f"folder {path} holds no {' or '.join(PICKLES)} file; name an .sdf or GEOM's folder"
            )
        return found
    return [check_file(path, "data set")] if path.suffix.lower() in PICKLES else []


def _pickled(
    files: list[Path], max_atoms: int, elements: tuple[str, ...]
) -> Iterator[tuple[str, Chem.Mol, list[float]]]:
    warnings.warn(
        f"reading {len(files)} pickle(s): they may run any code that their author put in",
        UserWarning,
        stacklevel=3,
    )
    for file in files:
        try:
            with file.open("rb") as stream:
                conformers = pickle.load(stream)["conformers"]
            records = [(entry["rd_mol"], float(entry.get("relativeenergy", "nan"))) for entry in conformers]
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{file} is no GEOM pickle with conformers and rd_mol ({error!r})") from None
        for number, (source, energy) in enumerate(records):
            where = f"{file.name}, conformer {number}"
            mol = read_molecule(source, max_atoms=max_atoms, elements=elements, where=where)
            if mol.GetNumConformers() == 0:
                raise InputError(f"{where} lacks hydrogens or coordinates; all atoms are needed in 3D")
            yield where, mol, [energy] * mol.GetNumConformers()
