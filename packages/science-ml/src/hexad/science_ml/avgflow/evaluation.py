"""Comparing conformers with reference ensembles: a network's, ETKDGv3's, or those of a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.ensembles import Ensemble, etkdg, seed_of, with_conformers
from hexad.science_ml.avgflow.generator import ConformerGenerator
from hexad.science_ml.avgflow.metrics import ConformerMetrics, conformer_metrics, mean_metrics, relax
from hexad.science_ml.avgflow.molecules import read_molecule


@dataclass(frozen=True)
class Evaluation:
    """Means over molecules.

    Attributes:
        metrics: see there.
        molecules: compared.
        requested: conformers asked for.
        failed: of these, how many are missing.
        excess: median of the energy of relaxed samples above the molecule's reference minimum, kcal/mol; None
            where it was not asked for.
    """

    metrics: ConformerMetrics
    molecules: int
    requested: int
    failed: int
    excess: float | None = None

    def row(self) -> dict[str, float | int | None]:
        """The numbers by name."""
        rest = asdict(self)
        return rest.pop("metrics") | rest


def sample_network(
    generator: ConformerGenerator,
    ensembles: Sequence[Ensemble],
    *,
    steps: int | None = None,
    seed: int = 0,
    attempts: int = 1,
    progress: Callable[[float, str], None] | None = None,
) -> list[Chem.Mol]:
    """Twice as many samples of a network as each ensemble has conformers."""
    mols = [generator.prepare(ensemble.smiles) for ensemble in ensembles]
    counts = [2 * len(ensemble) for ensemble in ensembles]
    sampled = generator.sample(mols, counts, steps=steps, seed=seed, attempts=attempts, progress=progress)
    return [with_conformers(mol, found.positions) for mol, found in zip(mols, sampled, strict=True)]


def sample_etkdg(ensembles: Sequence[Ensemble], *, seed: int = 0, timeout: int = 20) -> list[Chem.Mol]:
    """Twice as many conformers of RDKit's ETKDGv3, not relaxed, from other seeds than the references."""
    mols = []
    for ensemble in ensembles:
        mol = read_molecule(ensemble.smiles)
        with rdBase.BlockLogs():
            rdDistGeom.EmbedMultipleConfs(
                mol, 2 * len(ensemble), etkdg(seed_of(f"etkdg/{ensemble.smiles}", seed), timeout)
            )
        mols.append(mol)
    return mols


def evaluate(
    ensembles: Sequence[Ensemble],
    generated: Sequence[Chem.Mol],
    delta: float = 0.5,
    *,
    energies: bool = False,
    requested: Sequence[int] | None = None,
) -> Evaluation:
    """Coverage and mean RMSD of samples against ensembles, in the same order.

    Args:
        ensembles: references.
        generated: molecules with samples.
        delta: Angstrom.
        energies: relax the samples by MMFF94 and compare their energies with the references' minimum.
        requested: samples asked for, of each; default twice the references.

    Raises:
        InputError: none, not as many of both, or as `conformer_metrics`.
    """
    if len(ensembles) != len(generated):
        raise InputError(f"there are {len(ensembles)} references and {len(generated)} generated molecules")
    asked = [2 * len(ensemble) for ensemble in ensembles] if requested is None else list(requested)
    found = [
        conformer_metrics(ensemble.molecule(), mol, delta, count)
        for ensemble, mol, count in zip(ensembles, generated, asked, strict=True)
    ]
    made = sum(mol.GetNumConformers() for mol in generated)
    excess = None
    if energies:
        above = [_excess(*pair) for pair in zip(ensembles, generated, strict=True)]
        known = np.concatenate([np.zeros(0), *above])
        excess = float(np.median(known)) if len(known) else None
    return Evaluation(mean_metrics(found), len(found), sum(asked), sum(asked) - made, excess)


def _excess(ensemble: Ensemble, mol: Chem.Mol) -> np.ndarray:
    """Energies of the relaxed samples above the lowest of the relaxed references; none without parameters."""
    if mol.GetNumConformers() == 0 or not rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        return np.zeros(0)
    lowest = np.nanmin(ensemble.energies) if not np.isnan(ensemble.energies).all() else np.nan
    if np.isnan(lowest):
        lowest = relax(ensemble.molecule(), 1000)[1].min()
    return relax(mol, 1000)[1] - lowest


def match_generated(ensembles: Sequence[Ensemble], read: Mapping[str, Ensemble]) -> list[Chem.Mol]:
    """The generated molecule of each reference by its SMILES; without conformers where there is none.

    Raises:
        InputError: none of the references is among the generated molecules.
    """
    if not any(ensemble.smiles in read for ensemble in ensembles):
        raise InputError("none of the reference molecules is among the generated ones (stereoisomers differ)")
    return [
        read[ensemble.smiles].molecule() if ensemble.smiles in read else read_molecule(ensemble.smiles)
        for ensemble in ensembles
    ]
