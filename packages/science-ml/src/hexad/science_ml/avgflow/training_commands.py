"""`train`, `reflow` and `distill`: the three stages on the command line, resumed by the same command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar
from hexad.science_ml.avgflow.options import JsonOption, ThreadsOption, set_threads, stderr, stdout

if TYPE_CHECKING:
    from hexad.science_ml.avgflow.ensembles import Ensemble

OutOption = Annotated[
    Path, typer.Option("--out", "-o", help="Folder of the run; the same command goes on from there.")
]
StepsOption = Annotated[int, typer.Option(help="Optimiser steps in all; more than before trains on.")]
BatchOption = Annotated[int, typer.Option(help="Molecules a step.")]
RateOption = Annotated[float, typer.Option("--learning-rate", help="Highest; warm-up and cosine.")]
SeedOption = Annotated[int, typer.Option(help="Of weights, order, times and noise.")]
PickleOption = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Read GEOM's pickles, which can run any code: trust them first."),
]
PairsOption = Annotated[int, typer.Option(help="Pairs of noise and conformer for each molecule.")]
TeacherStepsOption = Annotated[int, typer.Option(help="Euler steps by which the teacher makes a pair.")]


def train(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="SDF of 3D conformers with all hydrogens. Default: 1 800 NCI molecules of RDKit's wheel, "
            "whose ensembles are made first (about five minutes, kept in a cache)."
        ),
    ] = None,
    out: OutOption = Path("avgflow-run"),
    steps: StepsOption = 12_000,
    batch_size: BatchOption = 32,
    network: Annotated[
        Literal["equivariant", "dit"], typer.Option(help="dit is the paper's, equivariant learns faster.")
    ] = "equivariant",
    layers: Annotated[int, typer.Option(help="Blocks of the network.")] = 6,
    width: Annotated[int, typer.Option(help="Numbers an atom; a multiple of the heads.")] = 120,
    heads: Annotated[int, typer.Option(help="Of attention.")] = 8,
    pairs_width: Annotated[int, typer.Option(help="Numbers a pair of atoms.")] = 48,
    hops: Annotated[int, typer.Option(help="Bonds between atoms that the network tells apart.")] = 6,
    learning_rate: RateOption = 1e-3,
    conformers: Annotated[int, typer.Option(help="Averaged over in a target, at most.")] = 4,
    objective: Annotated[
        Literal["avg", "cond_ot", "kabsch"], typer.Option(help="avg is the method; the others are baselines.")
    ] = "avg",
    interpolant: Annotated[
        Literal["random_rotation", "ode"], typer.Option(help="What the network sees; ode is the authors'.")
    ] = "random_rotation",
    times: Annotated[
        Literal["uniform", "mixed"], typer.Option(help="mixed: nine in ten late, where shapes are settled.")
    ] = "mixed",
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of matrix products.")
    ] = "bfloat16",
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 500,
    allow_pickle: PickleOption = False,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a network by averaged flow matching; writes OUT/base.safetensors.

    Examples:

        hexad science-ml avgflow train --out run

        hexad science-ml avgflow train my-conformers.sdf --out run --steps 50000
    """
    import torch

    from hexad.science_ml.avgflow.checkpoint import build
    from hexad.science_ml.avgflow.flow import FlowMatcher
    from hexad.science_ml.avgflow.stages import train_checkpoint
    from hexad.science_ml.avgflow.training import FlowTrainingConfig

    config = FlowTrainingConfig(
        steps,
        batch_size,
        learning_rate,
        warmup=300,
        weight_decay=0.01,
        conformers=conformers,
        seed=seed,
        precision=precision,
        checkpoint_every=checkpoint_every,
    )
    set_threads(threads or 1)
    torch.manual_seed(seed)
    sizes = {"layers": layers, "heads": heads, "width": width, "pairs": pairs_width, "hops": hops}
    model = build(network, sizes)
    matcher = FlowMatcher(objective, interpolant, times)
    ensembles, source = _ensembles(data, allow_pickle, quiet=as_json)
    with progress_bar(stderr, "training", quiet=as_json) as tell:
        path = train_checkpoint(model, ensembles, config, out, matcher=matcher, source=source, progress=tell)
    _report(path, as_json)


def reflow(
    checkpoint: Annotated[
        Path, typer.Argument(help="Base checkpoint, or `base`: the first weights, and the teacher.")
    ],
    molecules: Annotated[
        Path | None,
        typer.Argument(help="SMILES file or SDF to make pairs of. Default: those that `train` takes."),
    ] = None,
    out: OutOption = Path("avgflow-run"),
    pairs: PairsOption = 4,
    teacher_steps: TeacherStepsOption = 40,
    steps: StepsOption = 4_000,
    batch_size: BatchOption = 32,
    learning_rate: RateOption = 5e-4,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Straighten a base network's flow for sampling in two steps; writes OUT/reflow.safetensors.

    Example:

        hexad science-ml avgflow reflow run/base.safetensors --out run
    """
    _refine("reflow", checkpoint, checkpoint, molecules, out, pairs, teacher_steps, steps, batch_size,
            learning_rate, seed, threads, as_json)  # fmt: skip


def distill(
    checkpoint: Annotated[
        Path, typer.Argument(help="Reflow checkpoint, or `reflow`: the first weights. A base one serves too.")
    ],
    molecules: Annotated[
        Path | None,
        typer.Argument(help="SMILES file or SDF to make pairs of. Default: those that `train` takes."),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(help="Checkpoint that makes the pairs. Default: CHECKPOINT; the base one is better."),
    ] = None,
    out: OutOption = Path("avgflow-run"),
    pairs: PairsOption = 4,
    teacher_steps: TeacherStepsOption = 40,
    steps: StepsOption = 2_000,
    batch_size: BatchOption = 32,
    learning_rate: RateOption = 5e-4,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Distil to sampling in one step; writes OUT/distilled.safetensors.

    With the teacher, molecules and settings of `reflow` in the same folder its pairs are used again.

    Example:

        hexad science-ml avgflow distill run/reflow.safetensors --teacher run/base.safetensors --out run
    """
    _refine("distilled", checkpoint, teacher or checkpoint, molecules, out, pairs, teacher_steps, steps,
            batch_size, learning_rate, seed, threads, as_json)  # fmt: skip


def _refine(
    kind: Literal["reflow", "distilled"],
    student: Path,
    teacher: Path,
    molecules: Path | None,
    out: Path,
    pairs: int,
    teacher_steps: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    threads: int | None,
    as_json: bool,
) -> None:
    from hexad.science_ml.avgflow.checkpoint import load_checkpoint
    from hexad.science_ml.avgflow.molecules import canonical_smiles, read_file, read_molecule
    from hexad.science_ml.avgflow.stages import PairConfig, refine_checkpoint
    from hexad.science_ml.avgflow.training import FlowTrainingConfig

    making = PairConfig(pairs, teacher_steps, seed=seed)
    config = FlowTrainingConfig(
        steps,
        batch_size,
        learning_rate,
        warmup=100,
        weight_decay=0.01,
        decay=0.995,
        seed=seed,
        precision="bfloat16",
    )
    set_threads(threads or 1)
    known = load_checkpoint(student)
    load_checkpoint(teacher)
    if molecules is None:
        ensembles, source = _ensembles(None, False, quiet=as_json)
        mols = [read_molecule(ensemble.smiles) for ensemble in ensembles]
    else:
        read = read_file(molecules, max_atoms=known.max_atoms, elements=known.elements)
        unique = {canonical_smiles(mol): mol for _, mol in read}
        mols, source = list(unique.values()), str(molecules)
    with progress_bar(stderr, kind, quiet=as_json) as tell:
        path = refine_checkpoint(
            student, teacher, mols, kind, making, config, out, source=source, progress=tell
        )
    _report(path, as_json)


def _ensembles(data: Path | None, allow_pickle: bool, *, quiet: bool) -> "tuple[list[Ensemble], str]":
    """The user's ensembles, or the training side of the packaged ones, and a word on where they come from."""
    from hexad.core.environment import cores
    from hexad.science_ml.avgflow.datasets import read_dataset
    from hexad.science_ml.avgflow.ensembles import split_of
    from hexad.science_ml.avgflow.library import load_ensembles

    if data is not None:
        return read_dataset(data, allow_pickle=allow_pickle), str(data)
    if allow_pickle:
        raise InputError("--allow-pickle is for a data set of pickles; name one")
    with progress_bar(stderr, "reference ensembles", quiet=quiet) as tell:
        ensembles = load_ensembles(processes=cores(), progress=tell)
    chosen = [ensemble for ensemble in ensembles if split_of(ensemble.smiles) == "train"]
    return chosen, "NCI molecules of RDKit's wheel, training side"


def _report(path: Path, as_json: bool) -> None:
    from hexad.science_ml.avgflow.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(path)
    made: dict[str, Any] = {
        "file": str(path),
        "kind": checkpoint.kind,
        "elements": list(checkpoint.elements),
        "max_atoms": checkpoint.max_atoms,
        "parameters": sum(weight.numel() for weight in checkpoint.model.parameters()),
    } | checkpoint.provenance
    if as_json:
        print_json(made)
        return
    stdout.print(
        f"{path}: {made['kind']}, {made['parameters']:,} weights, {made['molecules']} molecule"
        f"{'s' * (made['molecules'] != 1)} of "
        f"{' '.join(made['elements'])} with at most {made['max_atoms']} atoms; loss {made['loss']:.4g}",
        soft_wrap=True,
        markup=False,
    )
