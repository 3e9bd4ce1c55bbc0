"""Conformers from a trained network, in the manner of RDKit's EmbedMultipleConfs.

No coordinate comes from RDKit: it reads molecules and holds the result. Stereochemistry is checked on every
sample; one that has it wrong is mirrored once, checked again, and given up if it is still wrong.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from rdkit import Chem

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count
from hexad.science_ml.avgflow.batching import MoleculeBatch, MoleculeGraph, collate, pad_coordinates
from hexad.science_ml.avgflow.checkpoint import KINDS, Checkpoint, load_checkpoint, shipped_path
from hexad.science_ml.avgflow.ensembles import seed_of, with_conformers
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.sampling import Grid, Solver, integrate, time_grid
from hexad.science_ml.avgflow.side_by_side import side_by_side
from hexad.science_ml.avgflow.stereo import stereo_kept

Precision = Literal["float32", "bfloat16"]
STEPS = {"base": 100, "reflow": 2, "distilled": 1}
"""Euler steps that each kind is sampled with (arXiv 2507.09785, section 4)."""
BLOCK = 500
"""Molecules sampled together: what is held in memory, and what Ctrl-C may lose."""
MAX_PAIRS = {"cpu": 40_000, "cuda": 4_000_000}
"""Pairs of atoms in a batch of the network. What a CPU's caches hold is twice as fast as ten times of it."""


def shipped_kinds() -> tuple[str, ...]:
    """The kinds of network that this package holds weights of."""
    return tuple(kind for kind in KINDS if shipped_path(kind).is_file())


@dataclass(frozen=True)
class Sampled:
    """Conformers of one molecule.

    Attributes:
        positions: Angstrom, centred; only those with the right stereochemistry, in the order of their draws.
        ids: for each requested conformer its row in `positions`, or -1 where all attempts failed.
        mirrored: how many of the kept ones had to be mirrored.
    """

    positions: Float[np.ndarray, "kept n 3"]
    ids: list[int]
    mirrored: int


class ConformerGenerator:
    """Samples conformers with a network.

    Args:
        checkpoint: network, kind and limits.
        device: of the network.
        precision: of its matrix products. `bfloat16` is faster where the processor multiplies it (AMX,
            AVX512-BF16, GPUs) and moves atoms by some hundredths of an Angstrom; positions stay float32.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: str | torch.device = "cpu", precision: Precision = "float32"
    ) -> None:
        self.precision = check_choice("precision", precision, ("float32", "bfloat16"))
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.model = checkpoint.model.to(self.device).eval()

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path = "base",
        device: str | torch.device = "cpu",
        precision: Precision = "float32",
    ) -> Self:
        """Load a checkpoint file, or by its kind one of those that the package holds (`shipped_kinds()`).

        Raises:
            InputError: no such file, or it is no checkpoint.
        """
        return cls(load_checkpoint(path), device, precision)

    def prepare(self, source: str | Chem.Mol, where: str = "") -> Chem.Mol:
        """The checked molecule with all hydrogens, within what this network was trained for.

        Raises:
            InputError: as `read_molecule`.
        """
        return read_molecule(
            source, max_atoms=self.checkpoint.max_atoms, elements=self.checkpoint.elements, where=where
        )

    def embed(
        self,
        source: str | Chem.Mol,
        num_confs: int = 10,
        *,
        steps: int | None = None,
        seed: int = 0,
        attempts: int = 3,
        grid: Grid = "uniform",
        solver: Solver = "euler",
    ) -> Chem.Mol:
        """A copy of the molecule, hydrogens added, with up to `num_confs` new conformers numbered from 0.

        The atoms keep their order; old conformers are dropped. The property `_AvgFlowFailed` of the result
        holds how many conformers failed.

        Args:
            source: SMILES or RDKit molecule.
            num_confs: conformers.
            steps: of the solver; default 100, 2 or 1, by the checkpoint's kind.
            seed: with the molecule it fixes the noise, whatever else is sampled.
            attempts: draws of each conformer until its stereochemistry is right.
            grid: of the times.
            solver: `euler` or `tsit5`.

        Raises:
            InputError: a molecule that is refused, `num_confs`, `steps` or `attempts` below 1, or a distilled
                checkpoint with more than one step.
        """
        mol = self.prepare(source)
        sampled = self.sample(
            [mol], num_confs, steps=steps, seed=seed, attempts=attempts, grid=grid, solver=solver
        )[0]
        result = with_conformers(mol, sampled.positions)
        result.SetIntProp("_AvgFlowFailed", sampled.ids.count(-1))
        return result

    def embed_multiple_confs(
        self,
        mol: Chem.Mol,
        num_confs: int = 10,
        *,
        steps: int | None = None,
        seed: int = 0,
        attempts: int = 3,
    ) -> list[int]:
        """Replace the molecule's conformers and return their ids, as RDKit's EmbedMultipleConfs does.

        Where RDKit leaves failures out of the list, they are -1 here: it has `num_confs` entries.

        Raises:
            InputError: as `embed`, or the molecule lacks hydrogens (call `Chem.AddHs` first).
        """
        if not isinstance(mol, Chem.Mol):
            raise InputError(f"mol is {mol!r:.60}; give an RDKit molecule, or use embed() for a SMILES")
        full = self.prepare(mol)
        if full.GetNumAtoms() != mol.GetNumAtoms():
            raise InputError("the molecule lacks hydrogens; call Chem.AddHs first, or use embed()")
        sampled = self.sample([full], num_confs, steps=steps, seed=seed, attempts=attempts)[0]
        mol.RemoveAllConformers()
        for conformer in with_conformers(full, sampled.positions).GetConformers():
            mol.AddConformer(conformer, assignId=True)
        return sampled.ids

    def sample(
        self,
        molecules: Sequence[Chem.Mol],
        num_confs: int | Sequence[int],
        *,
        steps: int | None = None,
        seed: int = 0,
        attempts: int = 3,
        grid: Grid = "uniform",
        solver: Solver = "euler",
        progress: Callable[[float, str], None] | None = None,
    ) -> list[Sampled]:
        """Conformers of many molecules, batched over molecules of like size.

        On a CPU the batches run side by side, on as many cores as torch has threads.

        Args:
            molecules: from `prepare`. One that is given several times gets other conformers each time.
            num_confs: of all, or of each.
            steps: as in `embed`, as the next five.
            seed: see there.
            attempts: see there.
            grid: see there.
            solver: see there.
            progress: called as `progress(fraction, "320 of 1000 molecules")`.

        Raises:
            InputError: as `embed`.
        """
        options: dict[str, Any] = {"steps": steps, "seed": seed, "attempts": attempts}
        return list(
            self.iterate(molecules, num_confs, **options, grid=grid, solver=solver, progress=progress)
        )

    def iterate(
        self,
        molecules: Sequence[Chem.Mol],
        num_confs: int | Sequence[int],
        *,
        steps: int | None = None,
        seed: int = 0,
        attempts: int = 3,
        grid: Grid = "uniform",
        solver: Solver = "euler",
        progress: Callable[[float, str], None] | None = None,
    ) -> Iterator[Sampled]:
        """As `sample`, one molecule after the other, in blocks of `BLOCK`: nothing else is held in memory."""
        counts = [num_confs] * len(molecules) if isinstance(num_confs, int) else num_confs
        if not isinstance(counts, Sequence):
            raise InputError(f"num_confs is {num_confs!r:.60}; it must be a whole number, or one a molecule")
        if len(counts) != len(molecules):
            raise InputError(f"num_confs has {len(counts)} entries for {len(molecules)} molecules")
        for count in counts:
            check_count("num_confs", count)
        check_count("attempts", attempts)
        check_count("seed", seed, 0)
        times = time_grid(self.check_steps(steps), grid)
        check_choice("solver", solver, ("euler", "tsit5"))
        return self._iterate(molecules, counts, times, seed, attempts, solver, progress)

    def _iterate(
        self,
        molecules: Sequence[Chem.Mol],
        counts: Sequence[int],
        times: list[float],
        seed: int,
        attempts: int,
        solver: Solver,
        progress: Callable[[float, str], None] | None,
    ) -> Iterator[Sampled]:
        seen: Counter[str] = Counter()
        for start in range(0, len(molecules), BLOCK):
            block = molecules[start : start + BLOCK]
            graphs = [featurize(mol, stereo=self.checkpoint.stereo) for mol in block]
            draws = []
            for graph in graphs:
                again = [seen[graph.smiles]] if seen[graph.smiles] else []
                draws.append(np.random.default_rng([seed_of(graph.smiles, seed), *again]))
                seen[graph.smiles] += 1

            def tell(share: float, start: int = start, size: int = len(block)) -> None:
                if progress is not None:
                    done = start + share * size
                    progress(done / len(molecules), f"{int(done)} of {len(molecules)} molecules")

            slots: list[list[Float[np.ndarray, "n 3"] | None]] = [
                [None] * count for count in counts[start : start + BLOCK]
            ]
            mirrored = [0] * len(graphs)
            for attempt in range(attempts):
                wanted = [place for place, frames in enumerate(slots) for frame in frames if frame is None]
                if not wanted:
                    break
                noise = [draws[place].standard_normal((graphs[place].atoms, 3)) for place in wanted]
                chosen = [graphs[place] for place in wanted]
                # Later attempts are few; the bar stands at the block's end meanwhile.
                made = iter(self._integrate(chosen, noise, times, solver, None if attempt else tell))
                for place, number in Counter(wanted).items():
                    frames = np.stack([next(made) for _ in range(number)])
                    positions, right, turned = _with_right_stereo(block[place], frames)
                    mirrored[place] += turned
                    empty = [slot for slot, frame in enumerate(slots[place]) if frame is None]
                    for slot, frame, good in zip(empty, positions, right, strict=True):
                        slots[place][slot] = frame if good else None
            yield from (_sampled(*parts) for parts in zip(slots, mirrored, graphs, strict=True))

    def check_steps(self, steps: int | None) -> int:
        """The steps to take: those asked for, or the kind's own.

        Raises:
            InputError: fewer than 1, or more than 1 with a distilled network.
        """
        kind = self.checkpoint.kind
        if steps is None:
            return STEPS[kind]
        check_count("steps", steps)
        if kind == "distilled" and steps != 1:
            raise InputError(
                f"steps is {steps}, but this checkpoint is distilled to a single one; use steps=1 or the "
                "reflow or base checkpoint"
            )
        return steps

    def _integrate(
        self,
        graphs: Sequence[MoleculeGraph],
        noise: Sequence[Float[np.ndarray, "_ 3"]],
        times: list[float],
        solver: Solver,
        tell: Callable[[float], None] | None,
    ) -> list[Float[np.ndarray, "_ 3"]]:
        """The centred ends of the flow from each noise, float64."""
        ends: list[Float[np.ndarray, "_ 3"]] = [np.empty((0, 3))] * len(graphs)
        done = 0

        def run(chunk: list[int]) -> tuple[list[int], Float[np.ndarray, "..."]]:
            x0 = pad_coordinates([noise[index] for index in chunk])
            return chunk, self._flow(collate([graphs[index] for index in chunk]), x0, times, solver)

        limit = MAX_PAIRS.get(self.device.type, MAX_PAIRS["cuda"])
        chunks = list(_chunks([graph.atoms for graph in graphs], limit))
        threads = min(torch.get_num_threads(), len(chunks)) if self.device.type == "cpu" else 1
        with side_by_side(run, chunks, threads) as results:
            for chunk, x1 in results:
                for index, frame in zip(chunk, x1, strict=True):
                    frame = frame[: graphs[index].atoms]
                    ends[index] = frame - frame.mean(axis=0)
                done += len(chunk)
                if tell is not None:
                    tell(done / len(graphs))
        return ends

    @torch.no_grad()
    def _flow(
        self, batch: MoleculeBatch, x0: torch.Tensor, times: list[float], solver: Solver
    ) -> Float[np.ndarray, "batch n 3"]:
        """The flow's end on one batch."""
        batch, x0 = batch.to(self.device), self.checkpoint.sigma0 * x0.to(self.device)

        def field(x: torch.Tensor, t: float) -> torch.Tensor:
            return self.model(x, torch.full((len(x),), t, device=x.device), batch)

        rounded = self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=rounded):
            return integrate(field, x0, times, solver).cpu().numpy().astype(np.float64)


def _chunks(sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices in batches of like size, each of at most `limit` pairs of atoms with the padding."""
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    start = 0
    while start < len(order):
        # The first of a batch is its largest.
        length = max(limit // sizes[order[start]] ** 2, 1)
        yield order[start : start + length]
        start += length


def _with_right_stereo(
    mol: Chem.Mol, positions: Float[np.ndarray, "k n 3"]
) -> tuple[Float[np.ndarray, "k n 3"], Bool[np.ndarray, " k"], int]:
    """Mirror the conformers that are wrong; say which are right then, and how many of them were mirrored."""
    right = stereo_kept(mol, positions)
    if right.all():
        return positions, right, 0
    positions = np.where(right[:, None, None], positions, -positions)
    now_right = right | stereo_kept(mol, positions)
    return positions, now_right, int((now_right & ~right).sum())


def _sampled(
    frames: Sequence[Float[np.ndarray, "n 3"] | None], mirrored: int, graph: MoleculeGraph
) -> Sampled:
    kept = [frame for frame in frames if frame is not None]
    numbers = itertools.count()
    ids = [-1 if frame is None else next(numbers) for frame in frames]
    positions = np.stack(kept) if kept else np.zeros((0, graph.atoms, 3))
    return Sampled(positions, ids, mirrored)
