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
        ({"theta": [0.1, 0.2]}, "a tensor of one a head"),
        ({"tau": "most"}, "give a number"),
        ({"block_q": 0}, "block_q"),
    ],
    ids=str,
)
def test_nonsense_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        HeadParams(**fields)


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
