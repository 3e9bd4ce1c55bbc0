"""The command line: `hexad science-ml avgflow sample mols.smi -o out.sdf`, `evaluate`, and training."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar
from hexad.science_ml.avgflow import training_commands
from hexad.science_ml.avgflow.evaluation_command import evaluate
from hexad.science_ml.avgflow.options import (
    CheckpointOption,
    DeviceOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    StepsOption,
    check_device,
    check_output,
    stderr,
    stdout,
)

if TYPE_CHECKING:
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
    picture: Annotated[Path | None, typer.Option(help="PNG or PDF of the first 16 molecules.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Make conformers of molecules and write them to an SDF.

    A conformer whose stereochemistry is not that of the input is mirrored once, drawn again up to --attempts
    times, and left out if it is still wrong; the summary says how many.

    Examples:

        hexad science-ml avgflow sample mols.smi -o out.sdf -n 20

        hexad science-ml avgflow sample "C[C@H](N)C(=O)O" -o alanine.sdf --checkpoint base --relax 500
    """
    from hexad.science_ml.avgflow.ensembles import with_conformers
    from hexad.science_ml.avgflow.generator import ConformerGenerator
    from hexad.science_ml.avgflow.metrics import relax as relax_mol
    from hexad.science_ml.avgflow.sampling import time_grid

    generator = ConformerGenerator.from_checkpoint(checkpoint, check_device(device), precision)
    # All that can be wrong is found before the first molecule is sampled.
    time_grid(generator.check_steps(steps), grid)
    if relax < 0:
        raise InputError(f"--relax is {relax}; it must be 0 or more")
    check_output(out, (".sdf",))
    if picture is not None:
        check_output(picture, (".png", ".pdf", ".svg"))
    names, mols, skipped = _molecules(molecules, generator, skip_bad)
    if relax:
        _check_mmff(names, mols)
    start = time.perf_counter()
    with progress_bar(stderr, "sampling", quiet=as_json) as tell:
        sampled = generator.sample(
            mols,
            num_confs,
            steps=steps,
            seed=seed,
            attempts=attempts,
            grid=grid,
            solver=solver,
            progress=tell,
        )
    seconds = time.perf_counter() - start
    results = [with_conformers(mol, found.positions) for mol, found in zip(mols, sampled, strict=True)]
    energies: list[Any] = [None] * len(results)
    if relax:
        with progress_bar(stderr, "relaxing", quiet=as_json) as tell:
            for place, mol in enumerate(results):
                if mol.GetNumConformers():
                    results[place], energies[place] = relax_mol(mol, relax)
                tell((place + 1) / len(results), f"{place + 1} of {len(results)} molecules")
    _write_sdf(out, names, results, energies)
    if picture is not None:
        _write_picture(picture, names, results)
    _report(names, sampled, skipped, seconds, out, generator.check_steps(steps), as_json)


def _molecules(
    source: str, generator: "ConformerGenerator", skip_bad: bool
) -> "tuple[list[str], list[Chem.Mol], list[str]]":
    """Names and molecules of a file or of one SMILES, and what was left out."""
    from hexad.science_ml.avgflow.molecules import SUFFIXES, read_file

    if Path(source).suffix.lower() not in SUFFIXES and not Path(source).exists():
        return [source], [generator.prepare(source)], []
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
    return [name for name, _ in read], [mol for _, mol in read], skipped


def _check_mmff(names: "list[str]", mols: "list[Chem.Mol]") -> None:
    from rdkit.Chem import rdForceFieldHelpers

    for name, mol in zip(names, mols, strict=True):
        if not rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
            raise InputError(f"--relax: MMFF94 has no parameters for {name}; leave it out or use --relax 0")


def _write_sdf(path: Path, names: list[str], mols: "list[Chem.Mol]", energies: list[Any]) -> None:
    from rdkit import Chem

    from hexad.core.files import atomic_path

    with atomic_path(path) as temporary, Chem.SDWriter(str(temporary)) as writer:
        for name, mol, levels in zip(names, mols, energies, strict=True):
            mol.SetProp("_Name", name)
            for place, conformer in enumerate(mol.GetConformers()):
                mol.SetIntProp("conformer", place)
                if levels is not None:
                    mol.SetDoubleProp("mmff94_kcal_per_mol", float(levels[place]))
                writer.write(mol, confId=conformer.GetId())


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
        name: found.ids.count(-1) for name, found in zip(names, sampled, strict=True) if -1 in found.ids
    }
    if as_json:
        print_json(
            {
                "file": str(out),
                "steps": steps,
                "seconds": seconds,
                "molecules": [
                    {"name": name, "ids": found.ids, "mirrored": found.mirrored}
                    for name, found in zip(names, sampled, strict=True)
                ],
                "left_out": skipped,
            }
        )
    else:
        mirrored = sum(found.mirrored for found in sampled)
        stdout.print(
            f"{made} conformers of {len(names)} molecule{'s' * (len(names) != 1)} in {out}: {steps} "
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
