"""Checkpoints with the key names of hustvl/Vim and Mamba-Reg: small, but named as the official ones.

The names are written out from the official code (`vim/models_mamba.py` and `mamba_simple.py` with
`bimamba_type="v2"`; Mamba-Reg's `models_mamba.py` and `mamba_custom.py`), not taken from our module.
"""

import argparse

import pytest
import timm
import torch
from safetensors.torch import save_file

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba import (
    VisionMamba,
    load_official,
    registry,  # noqa: F401 - the names of timm
)
from hexad.vision_robustness.shufflemamba.recipe import Recipe
from hexad.vision_robustness.shufflemamba.starting import starting_point
from hexad.vision_robustness.shufflemamba.storage import Description, save_network

DIM, DEPTH, STATES, INNER, RANK = 32, 2, 16, 64, 2
MIXER = {
    "A_log": (INNER, STATES),
    "D": (INNER,),
    "A_b_log": (INNER, STATES),
    "D_b": (INNER,),
    "in_proj.weight": (2 * INNER, DIM),
    "conv1d.weight": (INNER, 1, 4),
    "conv1d.bias": (INNER,),
    "x_proj.weight": (RANK + 2 * STATES, INNER),
    "dt_proj.weight": (INNER, RANK),
    "dt_proj.bias": (INNER,),
    "conv1d_b.weight": (INNER, 1, 4),
    "conv1d_b.bias": (INNER,),
    "x_proj_b.weight": (RANK + 2 * STATES, INNER),
    "dt_proj_b.weight": (INNER, RANK),
    "dt_proj_b.bias": (INNER,),
    "out_proj.weight": (DIM, INNER),
}


def draw(shapes):
    generator = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def blocks():
    names = {f"layers.{i}.mixer.{name}": shape for i in range(DEPTH) for name, shape in MIXER.items()}
    return names | {f"layers.{i}.norm.weight": (DIM,) for i in range(DEPTH)}


def vim():
    """vim_tiny_patch16_224_bimambav2_final_pool_mean_abs_pos_embed_with_midclstok_div2, small."""
    return draw(
        {
            "cls_token": (1, 1, DIM),
            "pos_embed": (1, 17, DIM),
            "patch_embed.proj.weight": (DIM, 3, 4, 4),
            "patch_embed.proj.bias": (DIM,),
            "head.weight": (10, DIM),
            "head.bias": (10,),
            **blocks(),
            "norm_f.weight": (DIM,),
        }
    )


def mamba_reg():
    """mambar_small_patch16_224 (12 registers, cls_reduce 2), small: 3 registers."""
    return draw(
        {
            "cls_token": (1, 3, DIM),
            "pos_embed_cls": (1, 3, DIM),
            "pos_embed": (1, 16, DIM),
            "patch_embed.proj.weight": (DIM, 3, 4, 4),
            "patch_embed.proj.bias": (DIM,),
            "neck.weight": (DIM // 2, DIM),
            "norm_neck.weight": (DIM // 2 * 3,),
            "head.weight": (10, DIM // 2 * 3),
            "head.bias": (10,),
            **blocks(),
            "norm_f.weight": (DIM,),
        }
    )


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def same(model, state):
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [vim, mamba_reg])
def test_the_names_are_the_official_ones(kind, tmp_path, images):
    # As DeiT's script, which Vim and Mamba-Reg train with, writes it.
    state = kind()
    whole = {"model": state, "optimizer": {"state": {}}, "epoch": 299, "args": argparse.Namespace(lr=1e-3)}
    torch.save(whole, tmp_path / "official.pth")
    model = load_official(tmp_path / "official.pth").eval()
    assert set(model.state_dict()) == set(state)
    assert same(model, state)
    assert model(images).shape == (2, 10)
    save_file(state, tmp_path / "official.safetensors")
    assert torch.equal(load_official(tmp_path / "official.safetensors").eval()(images), model(images))


def test_vims_class_token_is_read_in_the_middle(tmp_path, images):
    torch.save(vim(), tmp_path / "vim.pth")
    model = load_official(tmp_path / "vim.pth").eval()
    assert model.class_position == "middle"
    assert torch.equal(model(images), model.head(model.forward_features(images)[:, 8]))
    front = load_official(tmp_path / "vim.pth", class_position="front").eval()
    assert not torch.allclose(front(images), model(images))


def test_another_number_of_classes_gets_a_fresh_head(tmp_path, images):
    state = mamba_reg()
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "a.pth")
    model = load_official(tmp_path / "a.pth", num_classes=3, slws_rate=0.1)
    assert model(images).shape == (2, 3)
    del state["head.weight"], state["head.bias"]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert model.layers[1]._slws.p == 0.1


def test_positions_are_resized_and_the_class_position_kept(tmp_path):
    state = vim()
    torch.save(state, tmp_path / "vim.pth")
    model = load_official(tmp_path / "vim.pth", img_size=24)
    assert model.pos_embed.shape == (1, 37, DIM)
    assert torch.equal(model.pos_embed[:, 18], state["pos_embed"][:, 8])
    grid = torch.cat([state["pos_embed"][:, :8], state["pos_embed"][:, 9:]], 1).reshape(1, 4, 4, DIM)
    wanted = torch.nn.functional.interpolate(
        grid.permute(0, 3, 1, 2), size=(6, 6), mode="bicubic", align_corners=False
    )
    got = torch.cat([model.pos_embed[:, :18], model.pos_embed[:, 19:]], 1)
    torch.testing.assert_close(got, wanted.flatten(2).transpose(1, 2))
    torch.save(mamba_reg(), tmp_path / "reg.pth")
    assert load_official(tmp_path / "reg.pth", img_size=24).pos_embed.shape == (1, 36, DIM)


def test_timm_loads_them_too(tmp_path, images):
    torch.save({"model": vim()}, tmp_path / "vim.pth")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": DIM, "depth": DEPTH, "d_state": STATES}
    model = timm.create_model(
        "vim_slws_tiny", pretrained=True, num_classes=4, class_position="middle", **sizes,
        pretrained_cfg_overlay={"file": str(tmp_path / "vim.pth"), "num_classes": 10},
    ).eval()  # fmt: skip
    official = load_official(tmp_path / "vim.pth").eval()
    assert torch.equal(model.forward_features(images), official.forward_features(images))


def test_what_does_not_fit_is_refused(tmp_path):
    def refused(state, message, **options):
        torch.save(state, tmp_path / "bad.pth")
        with pytest.raises(InputError, match=message):
            load_official(tmp_path / "bad.pth", **options)

    refused({**vim(), "layers.0.mixer.gamma": torch.ones(DIM)}, "layer scale")
    refused({**vim(), "rope.freqs_cos": torch.ones(2)}, "rotary positions")
    one_way = {name: value for name, value in vim().items() if "_b" not in name}
    refused(one_way, r"no layers\.0\.mixer\.A_b_log; it is none of Vim")
    refused({**vim(), "pos_embed": torch.zeros(1, 16, DIM)}, "15 patch positions are no square")
    refused({**vim(), "extra.weight": torch.zeros(1)}, r"does not fit: extra\.weight")
    refused(vim(), r"does not fit: layers\.0\.mixer\.A_log", d_state=8)
    refused({"model": {"a": print}}, "cannot be read as weights")
    refused({"epoch": 3}, "no table of tensors")
    with pytest.raises(InputError, match="does not exist"):
        load_official(tmp_path / "nowhere.pth")


def test_a_network_of_ours_can_be_read_back(tmp_path, images):
    own = VisionMamba(img_size=16, patch_size=4, embed_dim=16, depth=2, d_state=4, num_classes=3).eval()
    torch.save(own.state_dict(), tmp_path / "own.pth")
    assert torch.equal(
        load_official(tmp_path / "own.pth", class_position="front").eval()(images), own(images)
    )


def test_training_starts_from_tensors_with_the_class_token_in_front(tmp_path):
    # The tensors are the same wherever the token stands, so it must be said.
    torch.manual_seed(0)
    own = VisionMamba(img_size=16, patch_size=4, embed_dim=16, depth=2, d_state=2, num_classes=2).eval()
    torch.nn.init.normal_(own.pos_embed)
    path = tmp_path / "own.safetensors"
    save_file(own.state_dict(), path)
    images = torch.randn(2, 3, 16, 16)
    same = {}
    for position in ("front", "middle"):
        start = starting_point(None, path, None, Recipe(drop_path=0.0, slws_rate=0.0), position)
        made = start.network(start.describe(("a", "b")), Recipe(slws_rate=0.0)).eval()
        same[position] = torch.equal(made.forward_features(images), own.forward_features(images))
    assert same == {"front": True, "middle": False}


def test_patches_that_may_overlap_are_refused(tmp_path):
    # Vim's fine-tuned files have patches of 16 every 8 pixels: 27 x 27 of 224 pixels, of no other shape.
    torch.manual_seed(0)
    model = VisionMamba(img_size=48, patch_size=16, embed_dim=16, depth=1, d_state=2, num_classes=2)
    torch.save({"model": model.state_dict()}, tmp_path / "odd.pth")
    with pytest.raises(InputError, match=r"3 x 3 patches: of 48 pixels, or overlapping ones .* stride=16 to"):
        load_official(tmp_path / "odd.pth")
    with pytest.raises(InputError, match="stride 8 is not the patch's 16 pixels"):
        load_official(tmp_path / "odd.pth", stride=8)
    loaded = load_official(tmp_path / "odd.pth", stride=16, class_position="front").eval()
    images = torch.randn(1, 3, 48, 48)
    assert torch.equal(loaded(images), model.eval()(images))


def test_a_grid_of_as_many_patches_but_another_shape_is_resized(tmp_path):
    torch.manual_seed(0)
    model = VisionMamba(img_size=16, patch_size=4, embed_dim=16, depth=1, d_state=2, num_classes=2)
    torch.nn.init.normal_(model.pos_embed)
    torch.save(model.state_dict(), tmp_path / "square.pth")
    wide = load_official(tmp_path / "square.pth", img_size=(8, 32), class_position="front")
    assert wide.pos_embed.shape == model.pos_embed.shape
    assert not torch.equal(wide.pos_embed, model.pos_embed)
    assert torch.equal(wide.pos_embed[:, 0], model.pos_embed[:, 0])


def test_a_run_of_a_model_of_timm_is_tuned_at_its_size_with_a_head_for_its_classes(tmp_path):
    arguments = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2}
    description = Description("vit_tiny_patch16_224", arguments, ["a", "b"], 32, [0.5] * 3, [0.25] * 3, 1.0)
    torch.manual_seed(1)
    network = description.build()
    save_network(network, description, tmp_path / "model.safetensors")
    recipe = Recipe(slws_rate=0.0, drop_path=0.0)
    start = starting_point(None, tmp_path, None, recipe)
    heads = {}
    for classes in (("a", "b"), ("x", "y")):
        made = start.network(start.describe(classes), recipe)
        assert torch.equal(made.pos_embed, network.pos_embed)
        heads[classes] = torch.equal(made.head.weight, network.head.weight)
    assert heads == {("a", "b"): True, ("x", "y"): False}
    with pytest.raises(InputError, match=r"the weights do not fit: pos_embed is .*17, 24.*, not .*65, 24"):
        starting_point(None, tmp_path, 64, recipe)
