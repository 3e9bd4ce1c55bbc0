"""`evaluate`: conformers of a network, of ETKDGv3 or of a file against reference ensembles."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, print_table, progress_bar
from hexad.science_ml.avgflow.options import (
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
    from hexad.science_ml.avgflow.ensembles import Ensemble


def evaluate(
    reference: Annotated[
        Path | None,
        typer.Argument(help="SDF of reference conformers. Default: the NCI test molecules."),
    ] = None,
    generated: Annotated[
        Path | None, typer.Option(help="SDF of conformers to judge, in place of a checkpoint's.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", "-c", help="As of sample; default base.")
    ] = None,
    steps: StepsOption = None,
    delta: Annotated[float, typer.Option(help="RMSD in Angstrom within which a conformer is covered.")] = 0.5,
    limit: Annotated[int | None, typer.Option(help="Molecules at most.")] = None,
    energies: Annotated[
        bool, typer.Option("--energies", help="Relax samples by MMFF94 and compare energies.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="PNG, PDF or SVG of 16 molecules, over references.")
    ] = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Compare conformers with reference ensembles: coverage and mean RMSD, recall (R) and precision (P).

    Heavy atoms, symmetry counted. A checkpoint, and RDKit's ETKDGv3 beside it, makes twice as many samples as
    there are references, one attempt each: failures lower the coverage. Of a file all conformers are judged.

    Examples:

        hexad science-ml avgflow evaluate --checkpoint base --limit 50

        hexad science-ml avgflow evaluate reference.sdf --generated mine.sdf --delta 0.75
    """
    from hexad.core.validation import check_range
    from hexad.science_ml.avgflow import evaluation
    from hexad.science_ml.avgflow.datasets import read_dataset
    from hexad.science_ml.avgflow.figures import draw_overlays

    check_range("--delta", delta, 0, low_open=True)
    if limit is not None:
        check_range("--limit", limit, 1)
    if picture is not None:
        check_output(picture, (".png", ".pdf", ".svg"), reference)
    if generated is not None and (checkpoint is not None or steps is not None):
        raise InputError("--generated is judged in place of a checkpoint; leave out --checkpoint and --steps")
    checkpoint = "base" if checkpoint is None else checkpoint
    set_threads(threads)
    rows: dict[str, dict[str, Any]] = {}
    if generated is not None:
        references = _references(reference, limit, as_json)
        found = {ensemble.smiles: ensemble for ensemble in read_dataset(generated)}
        samples = evaluation.match_generated(references, found)
        # Nobody was asked for twice the references here; only a molecule that is missing has failed.
        asked = [mol.GetNumConformers() or 2 * len(e) for e, mol in zip(references, samples, strict=True)]
        judged = evaluation.evaluate(references, samples, delta, energies=energies, requested=asked)
        rows[str(generated)] = judged.row()
    else:
        from hexad.core.devices import find_device
        from hexad.science_ml.avgflow.generator import ConformerGenerator

        generator = ConformerGenerator.from_checkpoint(checkpoint, str(find_device(device)), precision)
        steps = generator.check_steps(steps)
        references = _references(reference, limit, as_json)
        start = time.perf_counter()
        with progress_bar(stderr, "sampling", quiet=as_json) as tell:
            samples = evaluation.sample_network(generator, references, steps=steps, seed=seed, progress=tell)
        between = time.perf_counter()
        peers = evaluation.sample_etkdg(references, seed=seed)
        ended = time.perf_counter()
        named = f"{checkpoint}, {steps} step{'s' * (steps > 1)}"
        for name, mols, seconds in ((named, samples, between - start), ("ETKDGv3", peers, ended - between)):
            rows[name] = evaluation.evaluate(references, mols, delta, energies=energies).row()
            rows[name]["per_second"] = sum(mol.GetNumConformers() for mol in mols) / seconds
    if picture is not None:
        from hexad.core.plots import save_figure

        shown = [ensemble.molecule() for ensemble in references[:16]]
        save_figure(draw_overlays(samples[:16], shown), picture)
    if as_json:
        print_json({"delta": delta, "rows": rows})
        return
    _print_rows(rows, delta)


def _print_rows(rows: dict[str, dict[str, Any]], delta: float) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("")
    columns = {"cov_r": "COV-R", "amr_r": "AMR-R", "cov_p": "COV-P", "amr_p": "AMR-P", "failed": "failed"}
    extra = {"excess": "kcal/mol", "per_second": "per second"}
    columns |= {k: v for k, v in extra.items() if any(row.get(k) is not None for row in rows.values())}
    for title in columns.values():
        shown.add_column(title, justify="right", no_wrap=True)
    for name, row in rows.items():
        shares = {k: f"{100 * row[k]:.1f} %" for k in ("cov_r", "cov_p")}
        counts = {"failed": str(row["failed"]), "per_second": f"{row.get('per_second', 0):.0f}"}
        lengths = {k: f"{row[k]:.3f}" for k in ("amr_r", "amr_p")}
        numbers = shares | lengths | counts | {"excess": f"{row['excess'] or 0:.2f}"}
        shown.add_row(name, *(numbers[key] for key in columns))
    print_table(stdout, shown)
    first = next(iter(rows.values()))
    stdout.print(
        f"{first['molecules']} molecule{'s' * (first['molecules'] != 1)}, {first['requested']} conformers; "
        f"covered within {delta:g} Angstrom"
    )


def _references(path: Path | None, limit: int | None, quiet: bool) -> "list[Ensemble]":
    from hexad.core.environment import cores
    from hexad.science_ml.avgflow.datasets import read_dataset
    from hexad.science_ml.avgflow.ensembles import split_of
    from hexad.science_ml.avgflow.library import load_ensembles

    if path is not None:
        return read_dataset(path)[:limit]
    with progress_bar(stderr, "reference ensembles", quiet=quiet) as tell:
        ensembles = load_ensembles(processes=cores(), progress=tell)
    return [ensemble for ensemble in ensembles if split_of(ensemble.smiles) == "test"][:limit]
