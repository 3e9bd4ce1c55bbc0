"""Pictures of conformers: what is drawn, and where."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.ensembles import EmbedConfig, make_ensemble, with_conformers
from hexad.science_ml.avgflow.figures import draw_overlays
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.rotations import random_rotations

SMALL = EmbedConfig(embeds=8)


@pytest.fixture(scope="module")
def butanol():
    return make_ensemble("CCCCO", SMALL)


def lines(axis) -> list[LineCollection]:
    return [item for item in axis.collections if isinstance(item, LineCollection)]


def test_each_molecule_has_a_panel_of_its_heavy_bonds(butanol):
    figure = draw_overlays([butanol.molecule(), read_molecule("CC")], titles=["butanol", "ethane"])
    first, second = figure.axes
    assert first.get_title() == "butanol"
    assert len(lines(first)) == len(butanol)
    assert all(len(item.get_segments()) == 2 * 4 for item in lines(first)), "two halves of four bonds"
    assert not lines(second)
    assert second.texts[0].get_text() == "no conformer"


def test_samples_lie_on_their_references(butanol):
    Q = random_rotations(len(butanol)).double().numpy()
    turned = with_conformers(butanol.molecule(), butanol.positions @ Q + 3.0)
    axis = draw_overlays([turned], [butanol.molecule()]).axes[0]
    under, best = lines(axis)[:2]
    assert np.abs(np.array(under.get_segments()) - np.array(best.get_segments())).max() < 1e-3
    assert axis.texts[0].get_text() == "0.00 Å"


def test_bad_lists_are_refused(butanol):
    with pytest.raises(InputError, match="no molecules"):
        draw_overlays([])
    with pytest.raises(InputError, match="1 molecules and 2 titles"):
        draw_overlays([butanol.molecule()], titles=["a", "b"])


def test_nonsense_is_refused(butanol):
    mol = butanol.molecule()
    with pytest.raises(InputError, match="columns is 0"):
        draw_overlays([mol], columns=0)
    with pytest.raises(InputError, match="conformers is 0"):
        draw_overlays([mol], conformers=0)
    mol.GetConformer().SetAtomPosition(0, (np.nan, 0, 0))
    with pytest.raises(InputError, match="not finite"):
        draw_overlays([mol])
