"""The command line: `hexad science-ml avgflow sample mols.smi -o out.sdf`, `evaluate`, and training."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_count
from hexad.science_ml.avgflow import training_commands
from hexad.science_ml.avgflow.evaluation_command import evaluate
from hexad.science_ml.avgflow.options import (
    CheckpointOption,
    DeviceOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    StepsOption,
    ThreadsOption,
    check_output,
    set_threads,
    stderr,
    stdout,
)

if TYPE_CHECKING:
    import numpy as np
    from rdkit import Chem

    from hexad.science_ml.avgflow.generator import ConformerGenerator, Sampled

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="AvgFlow: 3D conformers of molecules by SO(3)-averaged flow matching, in one step or many.",
)


@app.command()
def sample(
    molecules: Annotated[str, typer.Argument(help="A file (.smi, .smiles, .txt, .sdf) or one SMILES.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="SDF to write, one record a conformer.")] = Path(
        "conformers.sdf"
    ),
    num_confs: Annotated[int, typer.Option("--num-confs", "-n", help="Conformers of each molecule.")] = 10,
    checkpoint: CheckpointOption = "base",
    steps: StepsOption = None,
    solver: Annotated[Literal["euler", "tsit5"], typer.Option(help="Of the flow.")] = "euler",
    grid: Annotated[Literal["uniform", "log"], typer.Option(help="Of its times.")] = "uniform",
    attempts: Annotated[
        int, typer.Option(help="Draws of a conformer until its stereochemistry is right.")
    ] = 3,
    relax: Annotated[int, typer.Option(help="MMFF94 iterations afterwards; 0 leaves the samples alone.")] = 0,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out molecules that cannot be used, and say which.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="PNG, PDF or SVG of the first 16 molecules.")] = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Make conformers of molecules and write them to an SDF.

    A conformer whose stereochemistry is not that of the input is mirrored once, drawn again up to --attempts
    times, and left out if it is still wrong, as is one that --relax turns into another stereoisomer; the
    summary says how many. Ctrl-C keeps the molecules that are done.

    Examples:

        hexad science-ml avgflow sample mols.smi -o out.sdf -n 20

        hexad science-ml avgflow sample "C[C@H](N)C(=O)O" -o alanine.sdf --checkpoint base --relax 500
    """
    from hexad.core.devices import find_device
    from hexad.science_ml.avgflow.generator import ConformerGenerator
    from hexad.science_ml.avgflow.sampling import time_grid

    generator = ConformerGenerator.from_checkpoint(checkpoint, str(find_device(device)), precision)
    # All that can be wrong is found before the first molecule is sampled.
    time_grid(generator.check_steps(steps), grid)
    if relax:
        check_count("--relax", relax)
    check_output(out, (".sdf",), Path(molecules))
    if picture is not None:
        check_output(picture, (".png", ".pdf", ".svg"), Path(molecules))
    names, mols, skipped = _molecules(molecules, generator, skip_bad)
    if relax:
        _check_mmff(names, mols)
    set_threads(threads)
    start = time.perf_counter()
    with progress_bar(stderr, "sampling", quiet=as_json) as tell:
        sampled = generator.iterate(
            mols,
            num_confs,
            steps=steps,
            seed=seed,
            attempts=attempts,
            grid=grid,
            solver=solver,
            progress=tell,
        )
        made, shown, whole = _write_sdf(out, names, mols, sampled, relax)
    seconds = time.perf_counter() - start
    if picture is not None and shown:
        _write_picture(picture, names, shown)
    _report(names, made, skipped, seconds, out, generator.check_steps(steps), as_json)
    if not whole:
        stderr.print(
            f"interrupted: {out} holds {len(made)} of {len(mols)} molecules", soft_wrap=True, markup=False
        )
        raise typer.Exit(130)


def _molecules(
    source: str, generator: "ConformerGenerator", skip_bad: bool
) -> "tuple[list[str], list[Chem.Mol], list[str]]":
    """Names and molecules of a file or of one SMILES, and what was left out."""
    from hexad.science_ml.avgflow.molecules import SUFFIXES, canonical_smiles, read_file

    if not source.strip():
        raise InputError("give a file of molecules or a SMILES")
    if Path(source).suffix.lower() not in SUFFIXES and not Path(source).exists():
        try:
            return [source], [generator.prepare(source)], []
        except InputError as error:
            raise InputError(f"{error} (and there is no file of that name)") from None
    skipped: list[str] = []
    limits: dict[str, Any] = {
        "max_atoms": generator.checkpoint.max_atoms,
        "elements": generator.checkpoint.elements,
    }
    read = list(read_file(source, **limits, bad="skip" if skip_bad else "raise", skipped=skipped))
    for message in skipped:
        stderr.print(f"left out: {message}", style="yellow", markup=False, soft_wrap=True)
    if not read:
        raise InputError(f"no molecule of {source} can be used")
    again = len(read) - len({canonical_smiles(mol) for _, mol in read})
    if again:
        stderr.print(
            f"note: {again} of {len(read)} molecules are there before; each gets conformers of its own",
            soft_wrap=True,
            markup=False,
        )
    return [name for name, _ in read], [mol for _, mol in read], skipped


def _check_mmff(names: "list[str]", mols: "list[Chem.Mol]") -> None:
    from rdkit.Chem import rdForceFieldHelpers

    for name, mol in zip(names, mols, strict=True):
        if not rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
            raise InputError(f"--relax: MMFF94 has no parameters for {name}; leave it out or use --relax 0")


def _write_sdf(
    path: Path,
    names: list[str],
    mols: "list[Chem.Mol]",
    sampled: "Iterator[Sampled]",
    relax: int,
) -> "tuple[list[Sampled], list[Chem.Mol], bool]":
    """Write molecules as they are made; what was made, the first 16 for a picture, and whether it is all."""
    from rdkit import Chem

    from hexad.core.files import atomic_path
    from hexad.science_ml.avgflow.ensembles import with_conformers

    made: list[Sampled] = []
    shown: list[Chem.Mol] = []
    whole = True
    with atomic_path(path) as temporary, Chem.SDWriter(str(temporary)) as writer:
        try:
            for name, mol, found in zip(names, mols, sampled, strict=True):
                result, energies = with_conformers(mol, found.positions), None
                if relax and len(found.positions):
                    result, energies, found = _relaxed(result, found, relax)
                result.SetProp("_Name", name)
                for place, conformer in enumerate(result.GetConformers()):
                    result.SetIntProp("conformer", place)
                    if energies is not None:
                        result.SetDoubleProp("mmff94_kcal_per_mol", float(energies[place]))
                    writer.write(result, confId=conformer.GetId())
                # Coordinates are in the file; the report needs the rest.
                made.append(replace(found, positions=found.positions[:, :0]))
                if len(shown) < 16:
                    shown.append(result)
        except KeyboardInterrupt:
            if not made:
                raise
            whole = False
    return made, shown, whole


def _relaxed(mol: "Chem.Mol", found: "Sampled", iterations: int) -> "tuple[Chem.Mol, np.ndarray, Sampled]":
    """Relaxed conformers, their energies, and the record without those that lost their stereochemistry."""
    from hexad.science_ml.avgflow.metrics import relax

    relaxed, energies = relax(mol, iterations)
    kept = [conformer.GetId() for conformer in relaxed.GetConformers()]
    places = {row: place for place, row in enumerate(kept)}
    ids = [places.get(row, -1) for row in found.ids]
    return relaxed, energies, replace(found, positions=found.positions[kept], ids=ids)


def _write_picture(path: Path, names: list[str], mols: "list[Chem.Mol]") -> None:
    from hexad.core.plots import save_figure
    from hexad.science_ml.avgflow.figures import draw_overlays

    save_figure(draw_overlays(mols[:16], titles=names[:16]), path)


def _report(
    names: list[str],
    sampled: "list[Sampled]",
    skipped: list[str],
    seconds: float,
    out: Path,
    steps: int,
    as_json: bool,
) -> None:
    made = sum(len(found.positions) for found in sampled)
    failed = {
        name: found.ids.count(-1) for name, found in zip(names, sampled, strict=False) if -1 in found.ids
    }
    if as_json:
        print_json(
            {
                "file": str(out),
                "steps": steps,
                "seconds": seconds,
                "molecules": [
                    {"name": name, "ids": found.ids, "mirrored": found.mirrored}
                    for name, found in zip(names, sampled, strict=False)
                ],
                "left_out": skipped,
            }
        )
    else:
        mirrored = sum(found.mirrored for found in sampled)
        stdout.print(
            f"{made} conformers of {len(sampled)} molecule{'s' * (len(sampled) != 1)} in {out}: {steps} "
            f"step{'s' * (steps != 1)}, {seconds:.1f} s, {made / seconds:.0f} a second; {mirrored} mirrored",
            soft_wrap=True,
            markup=False,
        )
    if failed:
        shown = ", ".join(f"{name} ({count})" for name, count in list(failed.items())[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        stderr.print(
            f"warning: {sum(failed.values())} conformers failed (wrong stereochemistry): {shown}{more}; "
            "try more --attempts or another checkpoint",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


app.command()(evaluate)
app.command()(training_commands.train)
app.command()(training_commands.reflow)
app.command()(training_commands.distill)
