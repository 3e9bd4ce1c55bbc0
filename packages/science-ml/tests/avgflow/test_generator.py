"""ConformerGenerator, with the exact field in place of a network, so that its results are known."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem

from hexad.core.errors import InputError
from hexad.science_ml.avgflow import generator as module
from hexad.science_ml.avgflow.ensembles import EmbedConfig, make_ensemble, with_conformers
from hexad.science_ml.avgflow.generator import ConformerGenerator
from hexad.science_ml.avgflow.metrics import rmsd_matrix
from hexad.science_ml.avgflow.molecules import canonical_smiles, conformer_positions, read_molecule
from hexad.science_ml.avgflow.stereo import stereo_kept

sys.path.insert(0, str(Path(__file__).parent))
from exact import exact_checkpoint

ONE = EmbedConfig(embeds=1)
CHIRAL = "C[C@H](F)Cl"


@pytest.fixture(scope="module")
def alanine():
    return make_ensemble("C[C@H](N)C(=O)O", ONE)


def generator_of(*ensembles, kind: str = "base") -> ConformerGenerator:
    return ConformerGenerator(exact_checkpoint([e.positions[0] for e in ensembles], kind))


def test_embed_recovers_the_conformer_in_random_orientations(alanine):
    mol = generator_of(alanine).embed("C[C@H](N)C(=O)O", 6, steps=50)
    assert mol.GetNumConformers() == 6
    assert [conformer.GetId() for conformer in mol.GetConformers()] == list(range(6))
    assert mol.GetIntProp("_AvgFlowFailed") == 0
    # The exact flow ends on the conformer, up to the step from 0.98 to 1.
    assert rmsd_matrix(alanine.molecule(), mol).max() < 0.02
    first, second = conformer_positions(mol)[:2]
    assert np.abs(first - second).max() > 0.5, "turned differently"


def test_order_of_atoms_is_the_callers(alanine):
    mol = Chem.MolFromSmiles("OC(=O)[C@@H](N)C")
    full = read_molecule(mol)
    ordered = full.GetSubstructMatch(alanine.molecule(), useChirality=True)
    frame = np.empty_like(alanine.positions[0])
    frame[list(ordered)] = alanine.positions[0]
    generator = ConformerGenerator(exact_checkpoint([frame]))
    made = generator.embed(mol, 2, steps=20)
    assert [a.GetSymbol() for a in made.GetAtoms()][:6] == ["O", "C", "O", "C", "N", "C"]
    assert rmsd_matrix(alanine.molecule(), made).max() < 0.1
    assert mol.GetNumConformers() == 0


def test_seed_fixes_the_result_whatever_else_is_sampled(alanine):
    other = make_ensemble("CCCCO", ONE)
    generator = generator_of(alanine, other)
    alone = generator.embed(alanine.smiles, 3, steps=5, seed=4)
    mols = [generator.prepare(e.smiles) for e in (other, alanine)]
    together = generator.sample(mols, [2, 3], steps=5, seed=4)
    assert np.abs(conformer_positions(alone) - together[1].positions).max() < 1e-4  # float32, other padding
    fewer = generator.embed(alanine.smiles, 2, steps=5, seed=4)
    assert np.abs(conformer_positions(alone)[:2] - conformer_positions(fewer)).max() < 1e-4
    assert np.abs(conformer_positions(generator.embed(alanine.smiles, 3, steps=5, seed=5)) -
                  conformer_positions(alone)).max() > 0.1  # fmt: skip


def test_a_mirror_image_is_turned_round_and_counted():
    ensemble = make_ensemble(CHIRAL, ONE)
    generator = ConformerGenerator(exact_checkpoint([-ensemble.positions[0]]))
    mol = generator.prepare(CHIRAL)
    sampled = generator.sample([mol], 4, steps=20)[0]
    assert sampled.mirrored == 4
    assert sampled.ids == [0, 1, 2, 3]
    assert stereo_kept(mol, sampled.positions).all()
    made = with_conformers(mol, sampled.positions)
    Chem.AssignStereochemistryFrom3D(made, confId=2)
    assert canonical_smiles(made) == CHIRAL


def test_what_no_mirror_mends_is_reported_as_failed():
    right, wrong = "C[C@@H](O)[C@H](N)C", "C[C@@H](O)[C@@H](N)C"
    ensemble = make_ensemble(wrong, ONE)
    order = ensemble.molecule().GetSubstructMatch(read_molecule(right))
    frame = ensemble.positions[0][list(order)]
    generator = ConformerGenerator(exact_checkpoint([frame]))
    mol = Chem.AddHs(Chem.MolFromSmiles(right))
    assert generator.embed_multiple_confs(mol, 3, steps=10, attempts=2) == [-1, -1, -1]
    assert mol.GetNumConformers() == 0
    assert generator.embed(right, 3, steps=10, attempts=1).GetIntProp("_AvgFlowFailed") == 3


def test_failed_draws_are_tried_again_and_ids_skip_those_that_stay_wrong(monkeypatch):
    ensemble = make_ensemble("CCO", ONE)
    generator = generator_of(ensemble)
    verdicts = iter([[True, False, False, True], [False, True], [True, False], [False], [False]])

    def fake(mol: Chem.Mol, positions: np.ndarray):
        good = np.array(next(verdicts))
        assert len(good) == len(positions)
        return positions, good, 0

    monkeypatch.setattr(module, "_with_right_stereo", fake)
    sampled = generator.sample([generator.prepare("CCO")], 4, steps=1, attempts=2)[0]
    assert sampled.ids == [0, -1, 1, 2]
    assert len(sampled.positions) == 3


def test_embed_multiple_confs_works_in_place_as_rdkit_does(alanine):
    generator = generator_of(alanine)
    mol = Chem.AddHs(Chem.MolFromSmiles(alanine.smiles))
    assert generator.embed_multiple_confs(mol, 3, steps=5) == [0, 1, 2]
    assert generator.embed_multiple_confs(mol, 2, steps=5) == [0, 1]
    assert mol.GetNumConformers() == 2
    assert mol.GetConformer(1).Is3D()


def test_batches_are_bounded(alanine, monkeypatch):
    monkeypatch.setitem(module.MAX_PAIRS, "cpu", 3 * 13**2)
    generator = generator_of(alanine)
    told: list[float] = []
    mol = generator.prepare(alanine.smiles)
    generator.sample([mol], 7, steps=1, attempts=1, progress=lambda fraction, note: told.append(fraction))
    assert generator.model.batches == [3, 3, 1]
    assert told == pytest.approx([3 / 7, 6 / 7, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_confs": 0}, "num_confs"),
        ({"steps": 0}, "steps"),
        ({"attempts": 0}, "attempts"),
        ({"grid": "cubic"}, "unknown grid"),
        ({"solver": "rk4"}, "unknown solver"),
    ],
)
def test_nonsense_is_refused(alanine, arguments, message):
    with pytest.raises(InputError, match=message):
        generator_of(alanine).embed("CCO", **arguments)


def test_unknown_precision_is_refused(alanine):
    with pytest.raises(InputError, match="unknown precision 'half'"):
        ConformerGenerator(generator_of(alanine).checkpoint, precision="half")


def test_steps_follow_the_kind(alanine):
    for kind, steps in (("base", 100), ("reflow", 2), ("distilled", 1)):
        generator = generator_of(alanine, kind=kind)
        generator.embed(alanine.smiles, 2, attempts=1)
        assert len(generator.model.batches) == steps
    with pytest.raises(InputError, match="distilled to a single one; use steps=1"):
        generator_of(alanine, kind="distilled").embed(alanine.smiles, 2, steps=2)


def test_limits_of_the_checkpoint_are_enforced(alanine):
    generator = generator_of(alanine)
    for bad, message in (
        ("C[Si](C)(C)C" * 20, "cannot be read|at most 60"),
        ("C" * 20, "at most 60"),
        ("[Xe]C", "element Xe"),
        ("CC.O", "fragments"),
        ("[Na+]", "single atom"),
        ("C1CC", "syntax"),
    ):
        with pytest.raises(InputError, match=message):
            generator.embed(bad)
    with pytest.raises(InputError, match="AddHs"):
        generator.embed_multiple_confs(Chem.MolFromSmiles("CCO"))
    with pytest.raises(InputError, match="2 entries for 1 molecules"):
        generator.sample([generator.prepare("CCO")], [1, 2])
    with pytest.raises(InputError, match="does not exist"):
        ConformerGenerator.from_checkpoint("no-such.safetensors")


def test_rdkit_gives_no_coordinates(alanine, monkeypatch):
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("RDKit's coordinates were asked for")

    for home, name in (
        (rdDistGeom, "EmbedMolecule"),
        (rdDistGeom, "EmbedMultipleConfs"),
        (rdForceFieldHelpers, "MMFFOptimizeMolecule"),
        (rdForceFieldHelpers, "MMFFOptimizeMoleculeConfs"),
    ):
        monkeypatch.setattr(home, name, forbidden)
    assert generator_of(alanine).embed(alanine.smiles, 2, steps=5).GetNumConformers() == 2


def test_noise_is_centred_and_normal(alanine, monkeypatch):
    seen: list[torch.Tensor] = []

    def keep(field, x0, times, solver):
        seen.append(x0)
        return x0

    monkeypatch.setattr(module, "integrate", keep)
    generator = generator_of(alanine)
    generator.sample([generator.prepare(alanine.smiles)], 2000, attempts=1)
    x0 = torch.cat(seen)
    assert x0.mean(dim=1).abs().max() < 1e-5
    # Centring takes 1 / n of the variance; 2000 draws of 13 atoms give the variance to 1 %.
    assert x0.var().item() == pytest.approx(12 / 13, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_confs": 2.5}, "num_confs is 2.5"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"seed": "a"}, "seed is 'a'"),
    ],
)
def test_numbers_that_are_not_whole_are_refused(alanine, arguments, message):
    with pytest.raises(InputError, match=message):
        generator_of(alanine).embed("CCO", **arguments)


def test_a_smiles_has_no_conformers_to_replace(alanine):
    with pytest.raises(InputError, match="give an RDKit molecule"):
        generator_of(alanine).embed_multiple_confs("CCO")


def test_blocks_and_threads_change_nothing(alanine, monkeypatch):
    other = make_ensemble("CCCCO", ONE)
    generator = generator_of(alanine, other)
    mols = [generator.prepare(ensemble.smiles) for ensemble in (alanine, other, alanine)]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = generator.sample(mols, [3, 2, 3], steps=3)
        monkeypatch.setitem(module.MAX_PAIRS, "cpu", 1)
        threaded = generator.sample(mols, [3, 2, 3], steps=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(module, "BLOCK", 1)
    blocks = generator.sample(mols, [3, 2, 3], steps=3)
    for one, two, three in zip(whole, threaded, blocks, strict=True):
        np.testing.assert_allclose(one.positions, two.positions, atol=1e-5)
        np.testing.assert_allclose(one.positions, three.positions, atol=1e-5)
    assert np.abs(whole[0].positions - whole[2].positions).max() > 0.1, "a molecule again is drawn again"
