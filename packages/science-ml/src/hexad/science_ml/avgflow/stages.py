"""From data to checkpoint files: base, reflow, distilled. Each stage goes on where it was interrupted.

The pairs of noise and conformer that reflow and distillation learn from are made by a teacher and kept in
parts in the run's folder, so that making them resumes too and both stages share them.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from rdkit import Chem

from hexad.core.data import file_hash
from hexad.core.environment import environment
from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_folder
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, shipped_path
from hexad.science_ml.avgflow.ensembles import Ensemble
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.flow import FlowMatcher
from hexad.science_ml.avgflow.molecules import ELEMENTS, read_molecule
from hexad.science_ml.avgflow.reflow import make_reflow_pairs
from hexad.science_ml.avgflow.sampling import Grid
from hexad.science_ml.avgflow.stereo import stereo_kept
from hexad.science_ml.avgflow.training import FlowTrainingConfig, Network, refine, train_base

Progress = Callable[[float, str], None]
PART = 50
"""Molecules in a file of pairs: what an interrupted run may lose."""


@dataclass(frozen=True)
class PairConfig:
    """How a teacher makes pairs.

    Args:
        pairs: for each molecule; those with the wrong stereochemistry are left out.
        steps: of Euler.
        grid: of the times.
        seed: of the noise.
    """

    pairs: int = 8
    steps: int = 50
    grid: Grid = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("pairs", self.pairs, 1)
        check_range("steps", self.steps, 1)


def train_checkpoint(
    network: Network,
    ensembles: Sequence[Ensemble],
    config: FlowTrainingConfig,
    folder: str | Path,
    *,
    matcher: FlowMatcher = FlowMatcher(),
    stereo: bool = True,
    source: str = "",
    progress: Progress | None = None,
) -> Path:
    """Train the base network on ensembles and write `<folder>/base.safetensors`; return its path.

    Args:
        network: with its first weights.
        ensembles: of the molecules to learn.
        config: of the training.
        folder: of the run; checkpoints of the training lie in its folder `base`.
        matcher: objective and interpolant.
        stereo: mark stereochemistry in the graphs.
        source: where the data comes from, for the provenance.
        progress: called as `progress(fraction, "loss 1.23")`.

    Raises:
        InputError: no ensembles, or as `train_base`.
    """
    if not ensembles:
        raise InputError("there are no ensembles to train on")
    folder = writable_folder(folder, "run folder")
    mols = [read_molecule(ensemble.smiles) for ensemble in ensembles]
    graphs = [featurize(mol, stereo=stereo) for mol in mols]
    frames = [ensemble.positions for ensemble in ensembles]
    trained, history = train_base(network, graphs, frames, config, folder / "base", matcher, progress)
    present = {atom.GetSymbol() for mol in mols for atom in mol.GetAtoms()}
    checkpoint = Checkpoint(
        trained,
        "base",
        tuple(symbol for symbol in ELEMENTS if symbol in present),
        max(graph.atoms for graph in graphs),
        stereo,
        matcher.sigma0,
        _provenance(source, len(mols), config, history)
        | {"conformers": sum(map(len, ensembles)), "matcher": asdict(matcher)},
    )
    return _write(folder / "base.safetensors", checkpoint)


def refine_checkpoint(
    student: str | Path,
    teacher: str | Path,
    mols: Sequence[Chem.Mol],
    kind: Literal["reflow", "distilled"],
    pairs: PairConfig,
    config: FlowTrainingConfig,
    folder: str | Path,
    *,
    source: str = "",
    progress: Progress | None = None,
) -> Path:
    """Reflow or distil a checkpoint on a teacher's pairs and write `<folder>/<kind>.safetensors`.

    Args:
        student: checkpoint whose weights are the first ones.
        teacher: checkpoint that makes the pairs, usually the base one.
        mols: molecules, hydrogens included, from `read_molecule`.
        kind: `reflow` (all times) or `distilled` (one step).
        pairs: how many, and how.
        config: of the training.
        folder: of the run; the pairs lie there as well.
        source: where the molecules come from, for the provenance.
        progress: called as `progress(fraction, note)`, once for the pairs and once for the training.

    Raises:
        InputError: no molecules, a distilled student or teacher, or as `refine`.
    """
    if not mols:
        raise InputError("there are no molecules to make pairs of")
    folder = writable_folder(folder, "run folder")
    student, teacher = shipped_path(student), shipped_path(teacher)
    first, guide = load_checkpoint(student), load_checkpoint(teacher)
    for path, checkpoint in ((student, first), (teacher, guide)):
        if checkpoint.kind == "distilled":
            raise InputError(f"{path} is distilled to one step and has no flow left; name its base or reflow")
    if first.sigma0 != guide.sigma0:
        raise InputError(
            f"the student starts from noise of {first.sigma0} Angstrom, the teacher of {guide.sigma0}"
        )
    out = folder / f"{kind}.safetensors"
    for path in (student, teacher):
        if out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"{out} would be overwritten by what is learned from it; name another folder")
    graphs = [featurize(mol, stereo=first.stereo) for mol in mols]
    made = teach(guide, file_hash(teacher), mols, pairs, folder / "pairs", progress)
    trained, history = refine(first.model, graphs, made, kind, config, folder / kind, progress)
    details = {"pairs": asdict(pairs), "pairs_kept": sum(map(len, made)), "student": first.provenance}
    checkpoint = replace(
        first, model=trained, kind=kind, provenance=_provenance(source, len(mols), config, history) | details
    )
    return _write(out, checkpoint)


def teach(
    teacher: Checkpoint,
    identity: str,
    mols: Sequence[Chem.Mol],
    config: PairConfig,
    folder: str | Path,
    progress: Progress | None = None,
) -> list[Float[np.ndarray, "_ 2 n 3"]]:
    """The teacher's pairs for each molecule, made where the folder does not hold them.

    Pairs whose conformer has the wrong stereochemistry are left out: they would teach the mirror image.
    """
    folder = writable_folder(folder, "folder of pairs")
    found: list[Float[np.ndarray, "_ 2 n 3"]] = []
    for start in range(0, len(mols), PART):
        part = mols[start : start + PART]
        graphs = [featurize(mol, stereo=teacher.stereo) for mol in part]
        described = json.dumps([identity, asdict(config), start, [graph.smiles for graph in graphs]])
        path = folder / f"{hashlib.sha256(described.encode()).hexdigest()[:16]}.npz"
        if not path.exists():
            made = make_reflow_pairs(
                teacher.model,
                graphs,
                config.pairs,
                steps=config.steps,
                grid=config.grid,
                seed=config.seed + start,
                sigma0=teacher.sigma0,
                keep=lambda place, x1, part=part: bool(stereo_kept(part[place], x1.numpy()[None])[0]),
            )
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, *(pair.numpy() for pair in made))
        with np.load(path, allow_pickle=False) as file:
            found += [file[f"arr_{place}"] for place in range(len(part))]
        if progress is not None:
            done = start + len(part)
            progress(done / len(mols), f"pairs of {done} of {len(mols)} molecules")
    return found


def _provenance(
    source: str, molecules: int, config: FlowTrainingConfig, history: Float[np.ndarray, " steps"]
) -> dict[str, Any]:
    surroundings = environment()
    return {
        "data": source,
        "molecules": molecules,
        "training": asdict(config),
        # Single losses are noisy; the last twentieth is steady enough to compare runs by.
        "loss": float(history[-max(len(history) // 20, 1) :].mean()),
        "torch": torch.__version__,
        "processor": surroundings["processor"],
        "commit": surroundings["commit"],
    }


def _write(path: Path, checkpoint: Checkpoint) -> Path:
    save_checkpoint(path, checkpoint)
    return path
