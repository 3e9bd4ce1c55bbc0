"""Pictures of overlaid conformers without hydrogens, seen along the direction in which they are flattest."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from rdkit import Chem
from rdkit.Chem import rdMolAlign

from hexad.core.errors import InputError
from hexad.core.plots import new_figure
from hexad.core.validation import check_count
from hexad.science_ml.avgflow.metrics import rmsd_matrix
from hexad.science_ml.avgflow.molecules import conformer_positions

ELEMENT_COLOURS = {
    "C": "#404040", "N": "#0072B2", "O": "#D55E00", "S": "#E69F00", "F": "#009E73", "Cl": "#009E73",
    "Br": "#8a3b12", "P": "#CC79A7",
}  # fmt: skip


def draw_overlays(
    generated: Sequence[Chem.Mol],
    references: Sequence[Chem.Mol] | None = None,
    *,
    titles: Sequence[str] | None = None,
    columns: int = 4,
    conformers: int = 12,
) -> Figure:
    """One panel a molecule: its conformers laid over each other, or each over the reference nearest to it.

    Args:
        generated: molecules with conformers; those without are drawn as an empty panel.
        references: drawn broad and grey under the samples that are nearest to them, the best first.
        titles: of the panels; default the SMILES.
        columns: of the grid.
        conformers: at most, in a panel.

    Raises:
        InputError: no molecules, not as many references or titles, or coordinates that are not finite.
    """
    check_count("columns", columns)
    check_count("conformers", conformers)
    if not generated:
        raise InputError("there are no molecules to draw")
    for what, other in (("references", references), ("titles", titles)):
        if other is not None and len(other) != len(generated):
            raise InputError(f"there are {len(generated)} molecules and {len(other)} {what}")
    for mol in (*generated, *(references or ())):
        if mol.GetNumConformers():
            conformer_positions(mol)
    columns = min(columns, len(generated))
    rows = math.ceil(len(generated) / columns)
    figure, axes = new_figure(2.7 * columns, 2.6 * rows, rows, columns, squeeze=False)
    for place, axis in enumerate(axes.flat):
        axis.set_axis_off()
        axis.set_aspect("equal")
        if place >= len(generated):
            continue
        with_h = generated[place]
        mol = Chem.RemoveHs(with_h)
        title = Chem.MolToSmiles(mol) if titles is None else titles[place]
        axis.set_title(title if len(title) < 32 else title[:30] + "…", fontsize=7, fontweight="normal")
        if mol.GetNumConformers() == 0:
            axis.text(0.5, 0.5, "no conformer", ha="center", va="center", transform=axis.transAxes)
        elif references is None:
            _draw_alone(axis, mol, conformers)
        else:
            _draw_over(axis, mol, Chem.RemoveHs(references[place]), conformers)
        axis.autoscale_view()
        axis.margins(0.08)
    return figure


def _draw_alone(axis: Axes, mol: Chem.Mol, conformers: int) -> None:
    """Conformers aligned on the first one."""
    rdMolAlign.AlignMolConformers(mol)
    frames = [conformer.GetPositions() for conformer in mol.GetConformers()][:conformers]
    view = _view(frames[0])
    for frame in frames:
        _draw(axis, mol, frame @ view, width=1.2, alpha=max(0.25, 1 / len(frames)))


def _draw_over(axis: Axes, mol: Chem.Mol, reference: Chem.Mol, conformers: int) -> None:
    """For each reference its nearest sample, turned onto it; references side by side would be unreadable."""
    rmsd = rmsd_matrix(reference, mol)
    best = int(rmsd.min(axis=1).argmin())
    nearest = np.argsort(rmsd[best])[: min(conformers, 3)]
    under, numbers = list(reference.GetConformers())[best], [c.GetId() for c in mol.GetConformers()]
    view = _view(under.GetPositions())
    _draw(axis, reference, under.GetPositions() @ view, width=5.0, alpha=0.35, colour="#999999")
    for rank, sample in enumerate(nearest):
        number = numbers[int(sample)]
        rdMolAlign.GetBestRMS(mol, reference, number, under.GetId())
        _draw(
            axis, mol, mol.GetConformer(number).GetPositions() @ view, width=1.4, alpha=(1.0, 0.5, 0.3)[rank]
        )
    axis.text(
        0.5, 0.0, f"{rmsd[best].min():.2f} Å", ha="center", va="top", fontsize=7, transform=axis.transAxes
    )  # fmt: skip


def _view(frame: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "3 2"]:
    """The two directions in which the atoms spread most."""
    _, _, axes = np.linalg.svd(frame - frame.mean(axis=0), full_matrices=True)
    return axes[:2].T


def _draw(
    axis: Axes,
    mol: Chem.Mol,
    flat: Float[np.ndarray, "n 2"],
    *,
    width: float,
    alpha: float,
    colour: str | None = None,
) -> None:
    """Bonds as two halves, each in the colour of its atom."""
    lines, colours = [], []
    for bond in mol.GetBonds():
        ends = bond.GetBeginAtom(), bond.GetEndAtom()
        a, b = (flat[atom.GetIdx()] for atom in ends)
        for atom, (start, stop) in zip(ends, ((a, (a + b) / 2), ((a + b) / 2, b)), strict=True):
            lines.append((start, stop))
            colours.append(colour or ELEMENT_COLOURS.get(atom.GetSymbol(), "#7a5195"))
    axis.add_collection(
        LineCollection(lines, colors=colours, linewidths=width, alpha=alpha, capstyle="round")
    )
