"""What the arms of avgflow's study measure: the exact field, small networks, shipped checkpoints, ETKDGv3."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from hexad.core.studies import Measurement, Trial
from hexad.core.timing import interleave
from hexad.science_ml.avgflow.ensembles import Ensemble, etkdg, seed_of, split_of
from hexad.science_ml.avgflow.evaluation import sample_etkdg, sample_network
from hexad.science_ml.avgflow.flow import T_MAX, FlowMatcher, Objective
from hexad.science_ml.avgflow.generator import STEPS, ConformerGenerator, shipped_kinds
from hexad.science_ml.avgflow.heavy import (
    HeavyMolecule,
    heavy_molecules,
    sample_heavy,
    straighten,
    train_objective,
)
from hexad.science_ml.avgflow.library import load_ensembles
from hexad.science_ml.avgflow.metrics import conformer_metrics
from hexad.science_ml.avgflow.molecules import canonical_smiles, read_molecule
from hexad.science_ml.avgflow.rotations import align, random_rotations
from hexad.science_ml.avgflow.sampling import integrate, time_grid
from hexad.science_ml.avgflow.targets import averaged_velocity, centre

AVG, COND_OT, KABSCH, SHIPPED, ETKDG = "avg", "cond-ot", "kabsch", "shipped", "etkdg"
OBJECTIVES: dict[str, Objective] = {AVG: "avg", COND_OT: "cond_ot", KABSCH: "kabsch"}
DELTA = 0.5


@dataclass(frozen=True)
class Config:
    """Size of the study.

    Args:
        exact: molecules of the parts without a network.
        draws: of each, of noise.
        train: molecules that the small networks learn.
        judged: of these and of as many others, how many are sampled; 0 leaves learning out.
        steps: of the training of each objective.
        refine: steps of reflow and of distillation.
        pairs: of noise and conformer for each molecule.
        shipped: test molecules for the shipped checkpoints.
        base_steps: by which the shipped base network is sampled.
    """

    exact: int
    draws: int
    train: int
    judged: int
    steps: int
    refine: int
    pairs: int
    shipped: int
    base_steps: int


def measure(trial: Trial) -> Iterator[Measurement]:
    """The exact field and the noise of the targets, then what a small network learns from them."""
    config: Config = trial.config
    torch.manual_seed(trial.seed)
    molecules, _ = heavy_molecules(config.exact, 0)
    for place, known in enumerate(molecules):
        trial.progress(0.02 * place / len(molecules), "exact field")
        yield from _transport(trial, known, f"m{place:03}")
        yield from _noise(trial, known, f"m{place:03}")
    if trial.arm == AVG:
        yield from _exact(trial, molecules)
    if config.judged:
        yield from _learned(trial)


def _draws(trial: Trial, known: HeavyMolecule) -> tuple[torch.Tensor, torch.Tensor]:
    """Centred noise and copies of the molecule's first conformer, float64."""
    X = torch.from_numpy(known.frames[:1]).double().expand(trial.config.draws, -1, -1)
    return centre(torch.randn_like(X)), X


def _flow(x0: torch.Tensor, X: torch.Tensor, steps: int) -> torch.Tensor:
    """The end of the exact averaged flow at t = 0.999, by Euler."""
    return integrate(
        lambda x, t: averaged_velocity(x, X, torch.full((len(x),), t)), x0, time_grid(steps, end=T_MAX)
    )


def _exact(trial: Trial, molecules: Sequence[HeavyMolecule]) -> Iterator[Measurement]:
    """Part A: without a network, the flow ends on the conformer, turned by a rotation of the Haar measure."""
    traces = []
    for place, known in enumerate(molecules):
        x0, X = _draws(trial, known)
        for steps in (5, 20, 50):
            end = _flow(x0, X, steps)
            turned, R = align(end, X)
            rmsd = (end - turned).square().sum(-1).mean(-1).sqrt().mean()
            yield Measurement("field_rmsd", float(rmsd), f"exact/{steps} steps/m{place:03}")
        traces.append(R.diagonal(dim1=-2, dim2=-1).sum(-1))
    trace = torch.cat(traces)
    yield Measurement("trace", abs(float(trace.mean())), "exact")
    yield Measurement("trace_square", float(trace.square().mean()), "exact")


def _transport(trial: Trial, known: HeavyMolecule, case: str) -> Iterator[Measurement]:
    """How far atoms travel from their noise to their place: less is a straighter, easier flow."""
    x0, X = _draws(trial, known)
    if trial.arm == AVG:
        end = _flow(x0, X, 20)
    elif trial.arm == KABSCH:
        end = align(x0, X)[0]
    else:
        end = X @ random_rotations(len(X), dtype=X.dtype)
    yield Measurement("transport", float((end - x0).square().sum(-1).mean()), f"transport/{case}")


def _noise(trial: Trial, known: HeavyMolecule, case: str) -> Iterator[Measurement]:
    """Part B: the share of the target that the network cannot know, E|u - E[u | x, t]|^2 / E|u|^2.

    The averaged velocity is the mean for the rotations of both `avg` and `cond-ot`; that of the alignment is
    another flow, whose mean has no closed form.
    """
    if trial.arm == KABSCH:
        return
    _, X = _draws(trial, known)
    mask = torch.ones(X.shape[:2], dtype=torch.bool)
    matcher = FlowMatcher(OBJECTIVES[trial.arm])
    for tenths in range(10):
        t = torch.full((len(X),), tenths / 10, dtype=X.dtype)
        _, x, u = matcher.draw(X, mask, t=t)
        left = (u - averaged_velocity(x, X, t)).square().sum() / u.square().sum()
        yield Measurement("target_noise", float(left), f"noise/t={tenths / 10:.1f}/{case}")


def _learned(trial: Trial) -> Iterator[Measurement]:
    """Parts C and D: small networks on heavy atoms; reflow and distillation of the averaged one."""
    config: Config = trial.config
    train, test = heavy_molecules(config.train, config.judged)
    sides = {"train": train[: config.judged], "test": test}
    share = 0.6 if trial.arm == AVG else 0.9

    def tell(fraction: float, note: str) -> None:
        trial.progress(0.02 + share * fraction, note)

    network, history = train_objective(
        train, OBJECTIVES[trial.arm], config.steps, trial.seed, trial.folder / "base", tell
    )
    np.save(trial.folder / "loss.npy", history)
    yield Measurement("loss", float(history[-max(len(history) // 10, 1) :].mean()), "train")
    nets = {"base": network}
    if trial.arm == AVG:
        reflowed, distilled = straighten(
            network, train, config.pairs, config.refine, trial.seed, trial.folder, trial.progress
        )
        nets |= {"reflow": reflowed, "distilled": distilled}
    precision: dict[str, float] = {}
    for kind, steps in (("base", 20), ("base", 1), ("reflow", 2), ("distilled", 1)):
        if kind not in nets:
            continue
        for side, molecules in sides.items():
            samples = sample_heavy(nets[kind], molecules, steps, trial.seed)
            name = f"{side}/{kind}, {steps} step{'s' * (steps > 1)}"
            precision[name] = yield from _judge([known.mol for known in molecules], samples, name)
    if trial.arm == AVG:
        ratio = precision["train/distilled, 1 step"] / precision["train/base, 1 step"]
        yield Measurement("one_step_ratio", ratio, "train")


def _judge(
    references: Sequence[Chem.Mol], samples: Sequence[Chem.Mol], name: str, failures: bool = False
) -> Generator[Measurement, None, float]:
    """The four numbers of each molecule; returns the mean AMR-P."""
    precisions = []
    for place, (reference, mol) in enumerate(zip(references, samples, strict=True)):
        asked = 2 * reference.GetNumConformers() if failures else None
        found = conformer_metrics(reference, mol, DELTA, asked)
        for metric in ("cov_r", "amr_r", "cov_p", "amr_p"):
            if np.isfinite(value := getattr(found, metric)):
                yield Measurement(metric, value, f"{name}/m{place:03}")
        precisions.append(found.amr_p)
    return float(np.nanmean(precisions))


def _test_ensembles(count: int) -> list[Ensemble]:
    """The first test molecules of the library."""
    library = load_ensembles(min(-(-12 * count // 50) * 50, 2114))
    return [ensemble for ensemble in library if split_of(ensemble.smiles) == "test"][:count]


def shipped(trial: Trial) -> Iterator[Measurement]:
    """The shipped checkpoints on test molecules, hydrogens included: quality, and speed beside ETKDGv3."""
    config: Config = trial.config
    ensembles = _test_ensembles(config.shipped)
    references = [ensemble.molecule() for ensemble in ensembles]
    steps = STEPS | {"base": config.base_steps}
    generators = {kind: ConformerGenerator.from_checkpoint(kind) for kind in shipped_kinds()}
    for place, (kind, generator) in enumerate(generators.items()):
        trial.progress(place / 4, f"shipped {kind}")
        samples = sample_network(generator, ensembles, steps=steps[kind], seed=trial.seed, attempts=1)
        name = f"shipped/{kind}, {steps[kind]} step{'s' * (steps[kind] > 1)}"
        yield from _judge(references, samples, name, failures=True)
        asked = sum(2 * len(ensemble) for ensemble in ensembles)
        failed = 1 - sum(mol.GetNumConformers() for mol in samples) / asked
        yield Measurement("failed", failed, name)
        write_overlay(trial.folder / f"{kind}.npz", samples)
    trial.progress(3 / 4, "speed")
    yield from _speed(ensembles, generators)


def _speed(ensembles: Sequence[Ensemble], generators: dict[str, ConformerGenerator]) -> Iterator[Measurement]:
    """Conformers a second in interleaved rounds: 20 of each molecule, from the molecule to coordinates."""
    mols = [read_molecule(ensemble.smiles) for ensemble in ensembles]

    def embed() -> None:
        for mol, ensemble in zip(mols, ensembles, strict=True):
            parameters = etkdg(seed_of(ensemble.smiles), 20)
            parameters.numThreads = torch.get_num_threads()
            rdDistGeom.EmbedMultipleConfs(Chem.Mol(mol), 20, parameters)

    functions: dict[str, Callable[[], object]] = {"ETKDGv3": embed}
    for kind in ("distilled", "reflow"):
        if kind in generators:
            name = f"{kind}, {STEPS[kind]} step{'s' * (STEPS[kind] > 1)}"
            functions[name] = partial(generators[kind].sample, mols, 20, attempts=1)
            rounded = ConformerGenerator(generators[kind].checkpoint, precision="bfloat16")
            functions[f"{name}, bfloat16"] = partial(rounded.sample, mols, 20, attempts=1)
    timing = interleave(functions, rounds=3)
    for name in timing.seconds:
        yield Measurement("per_second", 20 * len(mols) / timing.median(name), f"speed/{name}")
        if name != "ETKDGv3":
            yield Measurement("speedup", timing.speedup(name, "ETKDGv3"), f"speed/{name}")


def etkdgv3(trial: Trial) -> Iterator[Measurement]:
    """RDKit's ETKDGv3, not relaxed, on the same molecules. It is near the generator of the references."""
    config: Config = trial.config
    if config.judged:
        train, test = heavy_molecules(config.train, config.judged)
        for side, molecules in (("train", train[: config.judged]), ("test", test)):
            samples = [_embed(known, trial.seed) for known in molecules]
            yield from _judge([known.mol for known in molecules], samples, f"{side}/ETKDGv3", failures=True)
    ensembles = _test_ensembles(config.shipped)
    references = [ensemble.molecule() for ensemble in ensembles]
    samples = sample_etkdg(ensembles, seed=trial.seed)
    yield from _judge(references, samples, "shipped/ETKDGv3", failures=True)


def _embed(known: HeavyMolecule, seed: int) -> Chem.Mol:
    mol = read_molecule(known.graph.smiles)
    rdDistGeom.EmbedMultipleConfs(mol, 2 * len(known.frames), etkdg(seed_of(known.graph.smiles, seed), 20))
    return mol


def write_overlay(path: Path, samples: Sequence[Chem.Mol]) -> None:
    """Keep the samples of eight molecules for the report's picture."""
    frames = [
        np.array([conformer.GetPositions() for conformer in mol.GetConformers()]) for mol in samples[:8]
    ]
    np.savez(path, np.array([canonical_smiles(mol) for mol in samples[:8]]), *frames)
