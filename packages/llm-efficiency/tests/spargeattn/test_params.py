import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn.params import HeadParams, load_layers, save_layers


def test_save_and_load_give_back_every_field(tmp_path):
    params = HeadParams(
        theta=torch.tensor([0.5, 1.0]),
        tau=torch.tensor([0.9375, 1.0]),
        pv_threshold=torch.tensor([12.5, 50.0]),
        attention_sink=True,
        block_q=64,
        block_k=32,
        smooth_k=False,
    )
    params.save(tmp_path / "a.safetensors")
    loaded = HeadParams.load(tmp_path / "a.safetensors")
    for name, value in params.arguments().items():
        read = getattr(loaded, name)
        assert torch.equal(read, value) if isinstance(value, torch.Tensor) else read == value, name
    assert loaded.heads == 2


def test_layers_keep_their_indices_and_own_settings(tmp_path):
    layers = {3: HeadParams(theta=0.25, tau=None, topk=0.5), 11: HeadParams(theta=torch.zeros(4), block_q=64)}
    save_layers(layers, tmp_path / "b.safetensors")
    loaded = load_layers(tmp_path / "b.safetensors")
    assert list(loaded) == [3, 11]
    assert (loaded[3].theta, loaded[3].tau, loaded[3].topk, loaded[3].heads) == (0.25, None, 0.5, None)
    assert (loaded[11].block_q, loaded[11].heads) == (64, 4)
    with pytest.raises(InputError, match="2 layers"):
        HeadParams.load(tmp_path / "b.safetensors")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    HeadParams(theta=0.25).save(path)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("hexad.llm_efficiency.spargeattn.params.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        HeadParams(theta=0.5).save(path)
    assert HeadParams.load(path).theta == 0.25
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topk": 0.5}, "both set"),
        ({"tau": None}, "both None"),
        ({"tau": 1.5}, r"tau is 1.5; every value must lie in \[0, 1\]"),
        ({"tau": torch.tensor([0.5, -0.1])}, "tau is"),
        ({"theta": -1.01}, "theta is"),
        ({"theta": float("nan")}, "theta is nan"),
        ({"tau": None, "topk": 1.01}, "topk is"),
        ({"pv_threshold": -1.0}, "pv_threshold is"),
        ({"theta": torch.zeros(2), "tau": torch.ones(3)}, "different numbers of heads"),
        ({"theta": torch.zeros(2, 2)}, "shape"),
        ({"theta": None}, "theta is None; give a number"),
        ({"theta": True}, "theta is True"),
        ({"theta": {}}, "one a head"),
        ({"theta": ["a", "b"]}, "one a head"),
        ({"theta": [0.1, 2.0]}, "theta is tensor"),
        ({"theta": []}, "shape"),
        ({"theta": torch.zeros(2, device="meta")}, "on meta"),
        ({"theta": torch.zeros(2).to_sparse()}, "sparse_coo"),
        ({"theta": torch.tensor([True, False])}, "a tensor of torch.bool"),
        ({"theta": torch.zeros(2, dtype=torch.complex64)}, "a tensor of torch.complex64"),
        ({"theta": [0.1, 0.2], "tau": np.ones(3)}, "different numbers of heads"),
        ({"tau": "most"}, "give a number"),
        ({"block_q": 0}, "block_q"),
        ({"block_q": 2.5}, "block_q is 2.5; it must be a whole number"),
        ({"block_k": "64"}, "block_k is '64'"),
        ({"attention_sink": "yes"}, "attention_sink is 'yes'"),
        ({"smooth_k": None}, "smooth_k is None"),
    ],
    ids=str,
)
def test_nonsense_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        HeadParams(**fields)


@pytest.mark.parametrize(
    "given", [[0.25, 0.5], (0.25, 0.5), np.array([0.25, 0.5]), np.array([0.25, 0.5], dtype=np.float32)]
)
def test_sequences_and_arrays_are_kept_as_tensors(given, tmp_path):
    params = HeadParams(theta=given)
    assert isinstance(params.theta, torch.Tensor)
    assert params.theta.tolist() == [0.25, 0.5]
    assert params.heads == 2
    params.save(tmp_path / "p.safetensors")
    assert torch.equal(HeadParams.load(tmp_path / "p.safetensors").theta, params.theta)


def test_numbers_of_numpy_are_numbers():
    params = HeadParams(theta=np.float32(0.25), tau=None, topk=np.float64(0.5), pv_threshold=3)
    assert (params.theta, params.topk, params.pv_threshold, params.heads) == (0.25, 0.5, 3.0, None)
    assert type(params.theta) is float


def test_a_missing_folder_is_made_and_other_targets_are_refused(tmp_path):
    HeadParams().save(tmp_path / "new" / "er" / "p.safetensors")
    assert HeadParams.load(tmp_path / "new" / "er" / "p.safetensors").theta == 0.6
    with pytest.raises(InputError, match="is a folder; name a file"):
        HeadParams().save(tmp_path / "new")
    with pytest.raises(InputError, match="is a file; name a folder"):
        HeadParams().save(tmp_path / "new" / "er" / "p.safetensors" / "q.safetensors")
    with pytest.raises(InputError, match="must be a path, not 5"):
        HeadParams().save(5)
    with pytest.raises(InputError, match="must be a path, not None"):
        load_layers(None)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({}, "no layers"),
        ({0: 5}, "params must be HeadParams, not int"),
        ({"a": HeadParams()}, "index of a layer is 'a'"),
        ({-1: HeadParams()}, "index of a layer is -1"),
        (HeadParams(), "must map indices to HeadParams"),
    ],
)
def test_other_things_than_layers_are_not_saved(layers, message, tmp_path):
    with pytest.raises(InputError, match=message):
        save_layers(layers, tmp_path / "p.safetensors")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_layers(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not tensors")
    with pytest.raises(InputError, match="no safetensors file"):
        load_layers(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="holds no filter parameters"):
        load_layers(tmp_path / "weights.safetensors")


def test_vectors_that_share_memory_are_saved(tmp_path):
    table = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    save_layers(
        {0: HeadParams(theta=table[:, 0]), 1: HeadParams(theta=table[:, 1])}, tmp_path / "t.safetensors"
    )
    assert load_layers(tmp_path / "t.safetensors")[1].theta.tolist() == pytest.approx([0.2, 0.4])
