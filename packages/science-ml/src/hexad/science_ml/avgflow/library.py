"""The packaged molecules' ensembles on disk: made once, in parallel, and resumed where they were left."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import joblib
import numpy as np
from rdkit import rdBase

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, cache_folder, writable_folder
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.ensembles import EmbedConfig, Ensemble, make_ensemble, packaged_smiles

PART = 50
"""Molecules in a file of the cache: what an interrupted run may lose."""


def load_ensembles(
    count: int | None = None,
    *,
    config: EmbedConfig = EmbedConfig(),
    processes: int = 1,
    folder: str | Path | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Ensemble]:
    """Ensembles of the packaged molecules, in the order of the file, each constitution and isomer once.

    What is not in the cache is made: about 0.3 s a molecule and process. Those that RDKit cannot embed or
    relax are left out.

    Args:
        count: of the first molecules of `packaged_smiles`; None for all 2 114.
        config: how they are made; another one has files of its own.
        processes: that make them.
        folder: of the cache; default `hexad.core.files.cache_folder("avgflow")`.
        progress: called as `progress(fraction, "350 molecules")` while some are made.

    Raises:
        InputError: a count or number of processes below 1, or a folder that cannot be written.
    """
    smiles = packaged_smiles()
    count = len(smiles) if count is None else count
    check_range("count", count, 1)
    check_range("processes", processes, 1)
    smiles = smiles[:count]
    home = writable_folder(folder or cache_folder("avgflow"), "cache")
    key = hashlib.sha256(json.dumps([asdict(config), rdBase.rdkitVersion]).encode()).hexdigest()[:12]
    # The number of molecules is in the name, so that a last part that was cut short is not taken for a whole.
    parts = [(start, smiles[start : start + PART]) for start in range(0, count, PART)]
    paths = [home / f"nci-{key}-{start:05}-{len(chosen)}.npz" for start, chosen in parts]
    missing = [(chosen, path) for (_, chosen), path in zip(parts, paths, strict=True) if not path.exists()]
    jobs = joblib.Parallel(n_jobs=min(processes, max(len(missing), 1)), return_as="generator_unordered")
    done = 0
    for made in jobs(joblib.delayed(_make_part)(chosen, config, path) for chosen, path in missing):
        done += made
        if progress is not None:
            progress(done / sum(len(chosen) for chosen, _ in missing), f"{done} molecules")
    found = {ensemble.smiles: ensemble for path in paths for ensemble in read_ensembles(path)}
    return list(found.values())


def _make_part(smiles: Sequence[str], config: EmbedConfig, path: Path) -> int:
    made = []
    for text in smiles:
        try:
            made.append(make_ensemble(text, config))
        except InputError:
            continue
    write_ensembles(path, made)
    return len(smiles)


def write_ensembles(path: str | Path, ensembles: Iterable[Ensemble]) -> None:
    """Write ensembles to one `.npz` without pickles, atomically."""
    ensembles = list(ensembles)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            smiles=np.array([ensemble.smiles for ensemble in ensembles], dtype=str),
            shapes=np.array([ensemble.positions.shape[:2] for ensemble in ensembles], np.int64).reshape(
                -1, 2
            ),
            positions=np.concatenate([np.zeros(0, np.float32), *(e.positions.ravel() for e in ensembles)]),
            energies=np.concatenate([np.zeros(0), *(e.energies for e in ensembles)]),
        )


def read_ensembles(path: str | Path) -> list[Ensemble]:
    """Read what `write_ensembles` wrote.

    Raises:
        InputError: the file is damaged or of another kind.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            smiles, shapes = file["smiles"], file["shapes"]
            positions, energies = file["positions"], file["energies"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no ensembles ({error}); delete it to make them again") from None
    counts = shapes[:, 0]
    frames = np.split(positions, np.cumsum(shapes.prod(axis=1) * 3)[:-1])
    levels = np.split(energies, np.cumsum(counts)[:-1])
    return [
        Ensemble(str(name), frame.reshape(*shape, 3), level)
        for name, shape, frame, level in zip(smiles, shapes, frames, levels, strict=False)
    ]
