"""Symmetries, padding and stereochemistry of both networks, with random weights in every layer."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.batching import MoleculeBatch, collate
from hexad.science_ml.avgflow.equivariant import EquivariantFlow, EquivariantFlowConfig, handedness
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig, graph_distances
from hexad.science_ml.avgflow.rotations import random_rotations
from hexad.science_ml.avgflow.targets import centre

SMILES = ("CCO", "C[C@H](N)C(=O)O", "F/C=C/Cl", "CS(=O)C")
SMALL_DIT = ConformerFlowConfig(layers=2, heads=4, width=32, pairs=16, registers=3, hops=3)
SMALL = EquivariantFlowConfig(layers=2, heads=4, width=32, vectors=8, pairs=16, hops=3)


def graph(smiles):
    return featurize(read_molecule(smiles))


def build(kind):
    """A small network in float64, none of its weights at their start of zero."""
    torch.manual_seed(0)
    network = ConformerFlow(SMALL_DIT) if kind == "dit" else EquivariantFlow(SMALL)
    for weight in network.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.2)
    return network.double().eval()


def batch_of(smiles, size=None):
    batch = collate([graph(one) for one in smiles], size)
    return MoleculeBatch(batch.node_features.double(), batch.laplacian.double(), batch.edge_types, batch.mask)


def inputs(batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*batch.mask.shape, 3, generator=generator, dtype=torch.float64)
    return centre(x, batch.mask), torch.rand(len(batch), generator=generator, dtype=torch.float64)


@pytest.fixture(params=["dit", "equivariant"])
def network(request):
    return build(request.param)


def test_equivariant_network_turns_with_its_input():
    network, batch = build("equivariant"), batch_of(SMILES)
    x, t = inputs(batch)
    Q = random_rotations(len(batch), torch.Generator().manual_seed(1), torch.float64)
    velocity = network(x, t, batch)
    assert velocity.abs().mean() > 0.01
    torch.testing.assert_close(network(x @ Q, t, batch), velocity @ Q, rtol=0, atol=1e-10)


def test_equivariant_network_tells_mirror_images_of_chiral_molecules_apart():
    network, batch = build("equivariant"), batch_of(SMILES)
    x, t = inputs(batch)
    assert (network(-x, t, batch) + network(x, t, batch)).abs().max() > 1e-3


def test_enantiomers_have_mirrored_signs_of_volume():
    # The same coordinates: the right ones for one enantiomer, the wrong ones for the other.
    left, right = batch_of(["C[C@H](N)C(=O)O"]), batch_of(["C[C@@H](N)C(=O)O"])
    x, _ = inputs(left)
    gradients, volume = handedness(x, left.edge_types)
    mirrored, opposite = handedness(x, right.edge_types)
    assert volume[0, 1].abs() > 0.1
    torch.testing.assert_close(opposite, -volume, rtol=0, atol=1e-12)
    torch.testing.assert_close(mirrored, -gradients, rtol=0, atol=1e-12)
    assert (volume[0, [0, 2, 3, 4, 5]] == 0).all()


@pytest.mark.parametrize("smiles", ["C[C@H](N)C(=O)O", "C[S@](=O)CC"])
def test_handedness_points_along_the_gradient_of_the_volume(smiles):
    batch = batch_of([smiles])
    x, _ = inputs(batch)
    x.requires_grad_()
    vectors, volume = handedness(x, batch.edge_types)
    (gradient,) = torch.autograd.grad(volume.sum(), x)
    length = gradient.norm(dim=-1, keepdim=True)
    # Scaled by 1 / sqrt(1 + |gradient|), up to the small number that keeps its root smooth.
    torch.testing.assert_close(vectors, gradient / (1 + length).sqrt(), rtol=1e-4, atol=1e-4)
    assert (length > 0.01).sum() == (5 if "[C@H]" in smiles else 4) - ("[C@H]" in smiles)


def test_real_conformers_of_one_stereoisomer_share_a_sign_of_volume():
    from hexad.science_ml.avgflow.ensembles import EmbedConfig, make_ensemble

    signs = []
    for smiles in ("C[C@H](N)C(=O)O", "C[C@@H](O)CC", "N[C@@H](C)CO", "C[C@H](F)[C@@H](Cl)C", "C[S@](=O)CC"):
        ensemble = make_ensemble(smiles, EmbedConfig(embeds=3))
        batch = batch_of([ensemble.smiles])
        x = torch.from_numpy(ensemble.positions[:1]).double()
        volume = handedness(x, batch.edge_types)[1][0]
        signs += torch.sign(volume[volume != 0]).tolist()
    assert len(signs) == 6
    assert len(set(signs)) == 1


def test_padding_has_no_effect(network):
    tight, loose = batch_of(["CCO"]), batch_of(["CCO"], size=15)
    x, t = inputs(tight)
    padded = torch.cat([x, torch.full((1, 6, 3), 5.0, dtype=torch.float64)], dim=1)
    found = network(padded, t, loose)
    torch.testing.assert_close(found[:, :9], network(x, t, tight), rtol=0, atol=1e-10)
    assert (found[:, 9:] == 0).all()


def test_molecules_of_a_batch_do_not_see_each_other(network):
    batch = batch_of(SMILES)
    x, t = inputs(batch)
    alone = batch_of(SMILES[:1], size=batch.mask.shape[1])
    torch.testing.assert_close(network(x[:1], t[:1], alone), network(x, t, batch)[:1], rtol=0, atol=1e-10)


def test_permuting_atoms_permutes_the_velocity(network):
    batch = batch_of(["C[C@H](N)C(=O)O"])
    x, t = inputs(batch)
    order = torch.randperm(batch.mask.shape[1], generator=torch.Generator().manual_seed(0))
    shuffled = MoleculeBatch(
        batch.node_features[:, order],
        batch.laplacian[:, order],
        batch.edge_types[:, order][:, :, order],
        batch.mask[:, order],
    )
    expected = network(x, t, batch)[:, order]
    torch.testing.assert_close(network(x[:, order], t, shuffled), expected, rtol=0, atol=1e-10)


def test_velocities_are_centred_and_shifts_do_not_matter(network):
    batch = batch_of(SMILES)
    x, t = inputs(batch)
    velocity = network(x, t, batch)
    assert velocity.sum(dim=1).abs().max() < 1e-10
    torch.testing.assert_close(network(x + 2, t, batch), velocity, rtol=0, atol=1e-10)


def test_every_input_matters(network):
    batch = batch_of(["C[C@H](N)C(=O)O"])
    x, t = inputs(batch)
    velocity = network(x, t, batch)
    changes = {
        "time": (x, t / 2, batch),
        "positions": (1.1 * x, t, batch),
        "features": (x, t, batch_of(["C[C@H](O)C(=O)N"])),
        "stereo": (x, t, batch_of(["C[C@@H](N)C(=O)O"])),
    }
    for name, arguments in changes.items():
        assert (network(*arguments) - velocity).abs().max() > 1e-4, name


def test_a_fresh_network_says_nothing(network):
    for fresh in (ConformerFlow(SMALL_DIT), EquivariantFlow(SMALL)):
        batch = collate([graph("CCO")])
        assert (fresh(torch.randn(1, 9, 3), torch.rand(1), batch) == 0).all()


def test_gradients_reach_all_weights_and_are_finite(network):
    batch = batch_of(SMILES)
    x, t = inputs(batch)
    # Atoms on one point, where distances have no derivative, must not give NaN.
    x = x.clone()
    x[:, 1] = x[:, 0]
    network(x, t, batch).square().sum().backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name


def test_paper_sizes_make_the_paper_network():
    network = ConformerFlow()
    millions = sum(weight.numel() for weight in network.parameters()) / 1e6
    # The released network counts 52 million.
    assert 45 < millions < 60


def test_graph_distances_count_bonds():
    distance = graph_distances(batch_of(["CCO"]).edge_types, 2)[0]
    # C, C, O, then hydrogens on the first C (3), the second (2) and O.
    assert distance[0, :3].tolist() == [0, 1, 2]
    assert distance[0, 3:].tolist() == [1, 1, 1, 2, 2, 3]
    assert distance[3, 8] == 3
    # Marks of stereochemistry must not hide or make bonds.
    chiral = graph_distances(batch_of(["C[C@H](N)C(=O)O"]).edge_types, 4)
    plain = collate([featurize(read_molecule("CC(N)C(=O)O"))])
    assert (chiral == graph_distances(plain.edge_types, 4)).all()
    cis = graph_distances(batch_of(["F/C=C/Cl"]).edge_types, 4)
    assert cis[0, 0, 3] == 3


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (ConformerFlowConfig, {"width": 30, "heads": 8}, "multiple of the 8 heads"),
        (ConformerFlowConfig, {"layers": 0}, "layers is 0"),
        (ConformerFlowConfig, {"registers": -1}, "registers is -1"),
        (EquivariantFlowConfig, {"vectors": 30}, "vectors 30 is no multiple"),
        (EquivariantFlowConfig, {"cutoff": 0.0}, "cutoff is 0.0"),
    ],
)
def test_nonsense_is_refused(config, settings, message):
    with pytest.raises(InputError, match=message):
        config(**settings)
