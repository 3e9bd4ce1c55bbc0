"""Reference ensembles of conformers, made from real molecules.

RDKit's wheel holds 5 000 SMILES of the National Cancer Institute's open collection (public domain). For each
that fits, ETKDGv3 embeds 20 conformers, MMFF94 relaxes them, and those that converged, kept their
stereochemistry and differ by 0.3 Angstrom or more (heavy atoms, symmetry counted) make the ensemble.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from rdkit import Chem, RDConfig, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers, rdMolAlign, rdMolDescriptors

from hexad.core.errors import HexadError, InputError
from hexad.science_ml.avgflow.molecules import canonical_smiles, conformer_positions, read_molecule
from hexad.science_ml.avgflow.stereo import stereo_kept

ELEMENTS = ("H", "C", "N", "O", "F", "S", "Cl", "Br")
"""Of the packaged molecules, and so of a network trained on them."""


@dataclass(frozen=True)
class Ensemble:
    """Conformers of one molecule, atoms in the order of `read_molecule(smiles)`.

    Attributes:
        smiles: canonical, stereochemistry included.
        positions: Angstrom, centred, the lowest energy first.
        energies: kcal/mol (MMFF94); NaN where they are not known.
    """

    smiles: str
    positions: Float[np.ndarray, "conformers n 3"]
    energies: Float[np.ndarray, " conformers"]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def atoms(self) -> int:
        """Number of atoms, hydrogens included."""
        return self.positions.shape[1]

    def molecule(self) -> Chem.Mol:
        """The molecule with its conformers."""
        return with_conformers(read_molecule(self.smiles), self.positions)


@dataclass(frozen=True)
class EmbedConfig:
    """How a reference ensemble is made.

    Args:
        embeds: conformers that ETKDGv3 draws.
        iterations: at most, of MMFF94.
        prune: Angstrom; a conformer nearer to one of lower energy is dropped.
        timeout: seconds for the embedding of a molecule, after which it is left out.
    """

    embeds: int = 20
    iterations: int = 5000
    prune: float = 0.3
    timeout: int = 20

    def __post_init__(self) -> None:
        for name in ("embeds", "iterations", "timeout"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.prune >= 0:
            raise InputError(f"prune is {self.prune}; it must be 0 or more (Angstrom)")


def with_conformers(mol: Chem.Mol, positions: Float[np.ndarray, "conformers n 3"]) -> Chem.Mol:
    """A copy of the molecule with these conformers, numbered from 0.

    Raises:
        InputError: the array is not (conformers, atoms of the molecule, 3), or is not finite.
    """
    wanted = (mol.GetNumAtoms(), 3)
    if positions.ndim != 3 or positions.shape[1:] != wanted:
        raise InputError(f"positions have shape {positions.shape}; they must be (conformers, {wanted[0]}, 3)")
    if not np.isfinite(positions).all():
        raise InputError("positions hold numbers that are not finite")
    copy = Chem.Mol(mol)
    copy.RemoveAllConformers()
    for frame in positions:
        conformer = Chem.Conformer(len(frame))
        conformer.SetPositions(np.ascontiguousarray(frame, np.float64))
        copy.AddConformer(conformer, assignId=True)
    return copy


def seed_of(text: str, seed: int = 0) -> int:
    """A number below 2**31 that is the same for the same text on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{text}".encode()).digest()[:4], "big") % 2**31


def etkdg(seed: int, timeout: int = 0) -> rdDistGeom.EmbedParameters:
    """RDKit's ETKDGv3 with a seed and, in seconds, an end."""
    parameters = rdDistGeom.ETKDGv3()
    parameters.randomSeed = seed
    parameters.timeout = timeout
    return parameters


def make_ensemble(smiles: str, config: EmbedConfig = EmbedConfig()) -> Ensemble:
    """The reference ensemble of a molecule; stereochemistry that the SMILES leaves open is drawn.

    Raises:
        InputError: the molecule is refused by `read_molecule`, cannot be embedded, has no MMFF parameters, or
            no conformer of it converges.
    """
    mol = read_molecule(smiles)
    seed = seed_of(canonical_smiles(mol))
    with rdBase.BlockLogs():
        if any(e.specified == Chem.StereoSpecified.Unspecified for e in Chem.FindPotentialStereo(mol)):
            # One draw settles it for all conformers: an ensemble is of one stereoisomer.
            if rdDistGeom.EmbedMolecule(mol, etkdg(seed, config.timeout)) < 0:
                raise InputError(f"{smiles} cannot be embedded by ETKDGv3")
            Chem.AssignStereochemistryFrom3D(mol)
        name = canonical_smiles(mol)
        mol = read_molecule(name)
        if not rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
            raise InputError(f"{name} has no MMFF94 parameters")
        identifiers = list(rdDistGeom.EmbedMultipleConfs(mol, config.embeds, etkdg(seed, config.timeout)))
        if not identifiers:
            raise InputError(f"{name} cannot be embedded by ETKDGv3")
        results = rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(mol, maxIters=config.iterations)
        right = stereo_kept(mol, conformer_positions(mol))
        good = [
            (energy, number)
            for number, (status, energy), kept in zip(identifiers, results, right, strict=True)
            if status == 0 and kept
        ]
    if not good:
        raise InputError(f"no conformer of {name} converged with its stereochemistry kept")
    kept = _prune(mol, [number for _, number in sorted(good)], config.prune)
    energies = {number: energy for energy, number in good}
    positions = np.stack([mol.GetConformer(number).GetPositions() for number in kept])
    positions -= positions.mean(axis=1, keepdims=True)
    return Ensemble(name, positions.astype(np.float32), np.array([energies[number] for number in kept]))


def _prune(mol: Chem.Mol, ordered: Sequence[int], threshold: float) -> list[int]:
    """Of conformers from low to high energy, those not nearer than `threshold` to one that was kept."""
    heavy = Chem.RemoveHs(mol)
    kept: list[int] = []
    for number in ordered:
        probe = Chem.Mol(heavy)  # GetBestRMS moves it
        if all(rdMolAlign.GetBestRMS(probe, heavy, number, other) >= threshold for other in kept):
            kept.append(number)
    return kept


def packaged_smiles() -> list[str]:
    """The NCI molecules of RDKit's wheel that are used, in the order of the file: 2 114 SMILES.

    One fragment, elements of `ELEMENTS`, 4 to 14 heavy atoms, at most 5 rotatable bonds.
    """
    path = Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi"
    if not path.is_file():
        raise HexadError(
            f"RDKit's data folder {path.parent} holds no {path.name}; install RDKit from its wheel"
        )
    chosen = []
    with rdBase.BlockLogs():
        for line in path.read_text().splitlines():
            mol = Chem.MolFromSmiles(line.split()[0])
            if mol is not None and fits(mol, heavy=(4, 14), rotatable=(0, 5)):
                chosen.append(line.split()[0])
    return chosen


def fits(mol: Chem.Mol, heavy: tuple[int, int], rotatable: tuple[int, int]) -> bool:
    """Whether it is one molecule of `ELEMENTS`, its heavy atoms and rotatable bonds within these bounds."""
    return (
        len(Chem.GetMolFrags(mol)) == 1
        and {atom.GetSymbol() for atom in mol.GetAtoms()} <= set(ELEMENTS)
        and heavy[0] <= mol.GetNumHeavyAtoms() <= heavy[1]
        and rotatable[0] <= rdMolDescriptors.CalcNumRotatableBonds(mol) <= rotatable[1]
    )


def split_of(smiles: str) -> Literal["train", "test"]:
    """The side of the fixed split: one constitution in eight is for tests, stereoisomers together."""
    mol = Chem.MolFromSmiles(smiles)
    return "test" if seed_of(Chem.MolToSmiles(mol, isomericSmiles=False)) % 8 == 0 else "train"
