"""Checkpoints come back as they were, and nothing else passes for one."""

import dataclasses
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hexad.science_ml.avgflow.equivariant import EquivariantFlow, EquivariantFlowConfig
from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig

NETWORKS = {
    "dit": lambda: ConformerFlow(ConformerFlowConfig(layers=1, heads=2, width=16, pairs=8)),
    "equivariant": lambda: EquivariantFlow(
        EquivariantFlowConfig(layers=1, heads=2, width=16, vectors=4, pairs=8)
    ),
}


def checkpoint(name="equivariant"):
    torch.manual_seed(0)
    return Checkpoint(
        NETWORKS[name](), "reflow", ("H", "C"), 30, stereo=False, sigma0=1.5, provenance={"seed": 3}
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_a_checkpoint_comes_back_as_it_was(tmp_path, name):
    before = checkpoint(name)
    save_checkpoint(tmp_path / "a.safetensors", before)
    after = load_checkpoint(tmp_path / "a.safetensors")
    assert type(after.model) is type(before.model)
    assert after.model.config == before.model.config
    assert not after.model.training
    for key, weight in before.model.state_dict().items():
        assert torch.equal(weight, after.model.state_dict()[key])
    for field in dataclasses.fields(Checkpoint):
        if field.name != "model":
            assert getattr(after, field.name) == getattr(before, field.name)


def test_half_precision_halves_the_file_and_rounds_the_weights(tmp_path):
    before = checkpoint()
    save_checkpoint(tmp_path / "full.safetensors", before)
    save_checkpoint(tmp_path / "half.safetensors", before, dtype=torch.float16)
    assert (tmp_path / "half.safetensors").stat().st_size < 0.7 * (
        tmp_path / "full.safetensors"
    ).stat().st_size
    after = load_checkpoint(tmp_path / "half.safetensors").model
    for key, weight in before.model.state_dict().items():
        assert after.state_dict()[key].dtype == torch.float32
        torch.testing.assert_close(after.state_dict()[key], weight, rtol=1e-3, atol=1e-4)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_checkpoint(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    with pytest.raises(InputError, match="cannot be read"):
        load_checkpoint(tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="no checkpoint of avgflow"):
        load_checkpoint(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hexad.avgflow/9"}, "format 'hexad.avgflow/9'"),
        ({"architecture": "unet"}, "unknown architecture 'unet'"),
        ({"kind": "teacher"}, "unknown kind 'teacher'"),
        ({"config": {"depth": 3}}, "sizes of the equivariant network"),
        ({"elements": []}, "needs the elements"),
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path / "a.safetensors", checkpoint())
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["avgflow"])
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(weights, tmp_path / "b.safetensors", metadata={"avgflow": json.dumps(described | change)})
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path / "b.safetensors")


def test_weights_of_another_size_are_refused(tmp_path):
    save_checkpoint(tmp_path / "a.safetensors", checkpoint())
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        metadata = file.metadata()
        weights = {key: file.get_tensor(key) for key in list(file.keys())[1:]}
    save_file(weights, tmp_path / "b.safetensors", metadata=metadata)
    with pytest.raises(InputError, match="no checkpoint of avgflow"):
        load_checkpoint(tmp_path / "b.safetensors")


def test_networks_of_others_cannot_be_saved(tmp_path):
    foreign = dataclasses.replace(checkpoint(), model=torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="a Linear cannot be saved"):
        save_checkpoint(tmp_path / "a.safetensors", foreign)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_refused(tmp_path):
    broken = checkpoint()
    next(broken.model.parameters()).data[0] = float("nan")
    save_checkpoint(tmp_path / "a.safetensors", broken)
    with pytest.raises(InputError, match=r"a\.safetensors holds weights that are not finite"):
        load_checkpoint(tmp_path / "a.safetensors")


def test_shipped_networks_go_by_their_kind():
    assert load_checkpoint("reflow").kind == "reflow"
