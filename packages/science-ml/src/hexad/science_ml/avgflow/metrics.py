"""How well generated conformers cover a reference ensemble, and what they cost in energy.

Coverage and mean RMSD as in GeoMol and AvgFlow (arXiv 2507.09785, section 4): without hydrogens, symmetry
counted (`GetBestRMS`), twice as many samples as references, means over molecules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from rdkit import Chem, rdBase
from rdkit.Chem import rdForceFieldHelpers, rdMolAlign

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.science_ml.avgflow.molecules import conformer_positions
from hexad.science_ml.avgflow.stereo import stereo_kept


@dataclass(frozen=True)
class ConformerMetrics:
    """Of one molecule, or the mean of several.

    Attributes:
        cov_r: share of the references that a sample comes within `delta` of (recall).
        amr_r: mean over references of the RMSD to the nearest sample, Angstrom.
        cov_p: share of the requested samples that come within `delta` of a reference (precision).
        amr_p: mean over samples of the RMSD to the nearest reference.
    """

    cov_r: float
    amr_r: float
    cov_p: float
    amr_p: float


def rmsd_matrix(reference: Chem.Mol, generated: Chem.Mol) -> Float[np.ndarray, "references samples"]:
    """Least RMSD in Angstrom of each pair of conformers over rotations, translations and symmetries.

    Hydrogens are left out. The two molecules may number their atoms differently.

    Raises:
        InputError: they are different molecules (stereochemistry aside), or one has no conformers.
    """
    with rdBase.BlockLogs():
        left, right = Chem.RemoveHs(reference), Chem.RemoveHs(generated)
    for what, mol in (("reference", left), ("generated", right)):
        if mol.GetNumConformers() == 0:
            raise InputError(f"the {what} molecule has no conformers to compare")
        for conformer in mol.GetConformers():
            if not np.isfinite(conformer.GetPositions()).all():
                raise InputError(f"the {what} molecule has coordinates that are not finite")
    names = [Chem.MolToSmiles(mol, isomericSmiles=False) for mol in (left, right)]
    if names[0] != names[1]:
        raise InputError(
            f"the reference is {names[0]}, the generated molecule {names[1]}; compare like with like"
        )
    flat = rdMolAlign.GetAllConformerBestRMSToRef(right, left)
    return np.array(flat).reshape(left.GetNumConformers(), right.GetNumConformers())


def conformer_metrics(
    reference: Chem.Mol, generated: Chem.Mol, delta: float = 0.5, requested: int | None = None
) -> ConformerMetrics:
    """Coverage and mean RMSD of the conformers of one molecule.

    Args:
        reference: with K conformers.
        generated: with samples, 2 K of them by custom.
        delta: Angstrom; 0.5 for GEOM-QM9, 0.75 for GEOM-Drugs.
        requested: samples asked for; those that failed lower `cov_p`. Default: none failed.

    Returns:
        Without any sample the coverages are 0 and the mean RMSDs NaN.

    Raises:
        InputError: as `rmsd_matrix`; or `delta` is not positive, or fewer were requested than are there.
    """
    check_range("delta", delta, 0, low_open=True)
    samples = generated.GetNumConformers()
    requested = samples if requested is None else requested
    if requested < samples:
        raise InputError(f"requested is {requested}, but the generated molecule has {samples} conformers")
    if samples == 0 and requested > 0:
        return ConformerMetrics(0.0, math.nan, 0.0, math.nan)
    return metrics_of(rmsd_matrix(reference, generated), delta, requested)


def metrics_of(
    rmsd: Float[np.ndarray, "references samples"], delta: float, requested: int | None = None
) -> ConformerMetrics:
    """The four numbers of a matrix of RMSDs; see `conformer_metrics`."""
    nearest_sample, nearest_reference = rmsd.min(axis=1), rmsd.min(axis=0)
    return ConformerMetrics(
        float((nearest_sample < delta).mean()),
        float(nearest_sample.mean()),
        float((nearest_reference < delta).sum() / (requested or rmsd.shape[1])),
        float(nearest_reference.mean()),
    )


def mean_metrics(metrics: Sequence[ConformerMetrics]) -> ConformerMetrics:
    """The mean over molecules; a molecule without samples counts in the coverages alone.

    Raises:
        InputError: there are none.
    """
    if not metrics:
        raise InputError("there are no molecules to take the mean of")
    table = np.array([[m.cov_r, m.amr_r, m.cov_p, m.amr_p] for m in metrics])
    known = ~np.isnan(table)
    sums, counts = np.where(known, table, 0).sum(axis=0), known.sum(axis=0)
    means = [float(s / c) if c else math.nan for s, c in zip(sums, counts, strict=True)]
    return ConformerMetrics(*means)


def mmff_energies(mol: Chem.Mol) -> Float[np.ndarray, " conformers"]:
    """MMFF94 energy of each conformer in kcal/mol.

    Raises:
        InputError: no conformers, or MMFF94 has no parameters for the molecule.
    """
    properties = _mmff(mol)
    return np.array(
        [
            rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties, confId=conf.GetId()).CalcEnergy()
            for conf in mol.GetConformers()
        ]
    )


def relax(mol: Chem.Mol, iterations: int = 200) -> tuple[Chem.Mol, Float[np.ndarray, " conformers"]]:
    """A copy whose conformers MMFF94 has relaxed, and their energies in kcal/mol.

    A conformer that relaxes into another stereoisomer than the molecule specifies is removed; the others keep
    their ids.

    Args:
        mol: with explicit hydrogens.
        iterations: at most; one that has not converged by then is kept as it is.

    Raises:
        InputError: as `mmff_energies`, or fewer than one iteration.
    """
    check_count("iterations", iterations)
    _mmff(mol)
    copy = Chem.Mol(mol)
    energies = np.array(
        [e for _, e in rdForceFieldHelpers.MMFFOptimizeMoleculeConfs(copy, maxIters=iterations)]
    )
    right = stereo_kept(copy, conformer_positions(copy))
    for conformer, kept in zip(list(copy.GetConformers()), right, strict=True):
        if not kept:
            copy.RemoveConformer(conformer.GetId())
    return copy, energies[right]


def _mmff(mol: Chem.Mol) -> Any:
    if not isinstance(mol, Chem.Mol):
        raise InputError(f"MMFF94 needs an RDKit molecule with conformers, not {mol!r:.60}")
    conformer_positions(mol)  # refuses none, and what is not finite
    if any(atom.GetTotalNumHs() for atom in mol.GetAtoms()):
        raise InputError("the molecule lacks hydrogens, which MMFF94 needs; call Chem.AddHs before embedding")
    with rdBase.BlockLogs():
        properties = rdForceFieldHelpers.MMFFGetMoleculeProperties(mol)
    if properties is None:
        raise InputError(f"MMFF94 has no parameters for {Chem.MolToSmiles(Chem.RemoveHs(mol))}")
    return properties
