"""The network: its sequence of tokens, timm's conventions, and what it refuses."""

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba import (
    VisionMamba,
    registry,  # noqa: F401 - the names of timm
)
from hexad.vision_robustness.shufflemamba.positions import register_order, resize_positions


def make(**options):
    torch.manual_seed(0)
    given = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "d_state": 4, "num_classes": 5}
    return VisionMamba(**(given | options))


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def sequence(model, images):
    """The tokens that enter the first block."""
    return model._embed(images)[0]


@pytest.mark.parametrize(("where", "place"), [("front", 0), ("middle", 8)])
def test_the_class_token_stands_where_it_should(where, place, images):
    model = make(class_position=where).eval()
    torch.nn.init.constant_(model.cls_token, 7.0)
    tokens = sequence(model, images) - model.pos_embed
    assert tokens.shape == (2, 17, 16)
    assert torch.allclose(tokens[:, place], torch.tensor(7.0))
    patches = model.patch_embed(images)
    assert torch.allclose(torch.cat([tokens[:, :place], tokens[:, place + 1 :]], 1), patches, atol=1e-6)
    # The head reads that token and no other.
    features = model.forward_features(images)
    assert torch.equal(model(images), model.head(features[:, place]))


def test_registers_are_spread_evenly_as_in_mamba_reg():
    order, places = register_order(9, 2)
    # Three patches, a register, three patches, a register, the rest.
    assert order.tolist() == [0, 1, 2, 9, 3, 4, 5, 10, 6, 7, 8]
    assert places.tolist() == [3, 7]
    order, places = register_order(196, 12)
    assert places.tolist() == [15 + 16 * k for k in range(12)]
    assert sorted(order.tolist()) == list(range(208))


def test_registers_are_reduced_joined_and_normalised(images):
    model = make(registers=3, reduce=2).eval()
    tokens = model.forward_features(images)
    assert tokens.shape == (2, 19, 16)
    places = register_order(16, 3)[1]
    expected = model.head(model.norm_neck(model.neck(tokens[:, places]).flatten(1)))
    assert torch.equal(model(images), expected)
    assert model.num_features == 24
    sent = sequence(model, images)
    assert torch.allclose(sent[:, places], (model.cls_token + model.pos_embed_cls).expand(2, -1, -1))


def test_average_pooling_leaves_the_class_token_out(images):
    model = make(global_pool="avg").eval()
    tokens = model.forward_features(images)
    assert torch.allclose(model(images), model.head(tokens[:, 1:].mean(1)), atol=1e-6)
    assert make(global_pool="", num_classes=0)(images).shape == (2, 17, 16)


def test_with_dead_mixers_the_network_is_its_embedding(images):
    model = make().eval()
    for block in model.layers:
        torch.nn.init.zeros_(block.mixer.out_proj.weight)
    assert torch.equal(model.forward_features(images), model.norm_f(sequence(model, images)))


def test_drop_path_grows_as_in_the_official_code():
    model = make(depth=5, drop_path_rate=0.4)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for block in model.layers]
    assert rates == pytest.approx([0, 0, 0.1, 0.2, 0.3])
    assert model.drop_path.drop_prob == pytest.approx(0.4)


def test_output_projections_shrink_with_depth():
    for depth in (1, 16):
        weight = make(depth=depth, embed_dim=64).layers[0].mixer.out_proj.weight
        # Uniform between -1 / sqrt(fan_in) and that, over sqrt(depth).
        assert weight.abs().max() <= 128**-0.5 / depth**0.5
        assert weight.std().item() == pytest.approx(128**-0.5 / 3**0.5 / depth**0.5, rel=0.03)
    stem = make(embed_dim=64).patch_embed.proj.weight
    assert stem.std().item() == pytest.approx(48**-0.5, rel=0.05)


def test_timm_conventions(images):
    model = make(slws_rate=0.3).eval()
    features = model.forward_features(images)
    assert torch.equal(model.forward_head(features), model(images))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    assert model.get_classifier() is model.head
    model.reset_classifier(0)
    assert model(images).shape == (2, 16)
    model.reset_classifier(7, "avg")
    assert model(images).shape == (2, 7)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.1)
    decayed = {
        name
        for name, parameter in model.named_parameters()
        for group in optimizer.param_groups
        if group["weight_decay"] and any(parameter is one for one in group["params"])
    }
    assert not any("A_" in name or name.endswith(("bias", ".D", ".D_b")) for name in decayed)
    assert not decayed & {"pos_embed", "cls_token", "norm_f.weight"}
    assert "layers.0.mixer.in_proj.weight" in decayed
    layered = create_optimizer_v2(model, "adamw", lr=1.0, layer_decay=0.5)
    scales = sorted({round(group["lr_scale"], 4) for group in layered.param_groups})
    assert scales == [0.0625, 0.125, 0.25, 0.5, 1.0]  # stem, three blocks, head


def test_features_of_blocks(images):
    model = make().eval()
    final, maps = model.forward_intermediates(images, indices=[0, 2])
    assert [tuple(found.shape) for found in maps] == [(2, 16, 4, 4)] * 2
    assert torch.equal(final, model.forward_features(images))
    (last, prefix), *rest = model.forward_intermediates(
        images, 1, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )
    assert not rest
    # Without stochastic depth the last block's stream, normalised, is the final output.
    torch.testing.assert_close(torch.cat([prefix, last], 1), final)
    early = model.forward_intermediates(images, [0], stop_early=True, intermediates_only=True)
    assert torch.equal(early[0], maps[0])
    model.prune_intermediate_layers([1], prune_norm=True)
    assert len(model.layers) == 2
    assert model(images).shape == (2, 16)


def test_registered_names_build_networks():
    names = timm.list_models("vim_slws_*")
    sizes = ["tiny", "small", "middle", "base", "large"]
    assert set(names) == {
        "vim_slws_micro", *(f"vim_slws_{size}" for size in sizes),
        *(f"vim_slws_reg_{size}" for size in ("tiny", "small", "base", "large")),
    }  # fmt: skip
    micro = timm.create_model("vim_slws_micro", num_classes=10, img_size=28)
    assert micro.patch_embed.num_patches == 49
    assert sum(parameter.numel() for parameter in micro.parameters()) == 284_106
    assert [block._slws.p for block in micro.layers] == pytest.approx([0.3 * k / 7 for k in range(8)])
    maps = timm.create_model("vim_slws_micro", features_only=True, out_indices=(1, 7))
    assert maps.feature_info.channels() == [64, 64]
    assert [tuple(found.shape) for found in maps(torch.randn(1, 3, 32, 32))] == [(1, 64, 8, 8)] * 2
    with torch.device("meta"):  # sizes without memory
        base = timm.create_model("vim_slws_base")
        assert len(base.layers) == 24
        assert 97e6 < sum(parameter.numel() for parameter in base.parameters()) < 99e6  # the paper's 98 M
        reg = timm.create_model("vim_slws_reg_small")
        assert reg.num_features == 192 * 12
        assert [block._slws.p for block in reg.layers][-1] == pytest.approx(0.1)


def test_positions_at_another_size(images):
    model = make(dynamic_img_size=True).eval()
    large = torch.randn(1, 3, 24, 20)
    assert model.forward_features(large).shape == (1, 31, 16)
    plain = model(images)
    model.set_input_size((24, 20))
    assert model.pos_embed.shape == (1, 31, 16)
    assert torch.equal(model.pos_embed[:, 0], make().pos_embed[:, 0])
    model.set_input_size(16)
    assert model(images).shape == plain.shape
    with pytest.raises(InputError, match="the image of 18 x 16 pixels is no whole number of patches"):
        model(torch.randn(1, 3, 18, 16))


def test_resized_positions_keep_rows_and_columns_apart():
    rows = torch.linspace(0, 1, 4)[:, None].expand(4, 6)
    columns = torch.linspace(0, 1, 6)[None].expand(4, 6)
    grid = torch.stack([rows, columns, torch.ones(4, 6)], -1).reshape(1, 24, 3)
    resized = resize_positions(grid, (4, 6), (8, 10)).reshape(8, 10, 3)
    assert (resized[1:, :, 0] > resized[:-1, :, 0]).all()
    assert torch.allclose(resized[:, 1:, 0], resized[:, :-1, 0], atol=1e-5)
    assert (resized[:, 1:, 1] > resized[:, :-1, 1]).all()
    assert torch.allclose(resized[..., 2], torch.tensor(1.0), atol=1e-5)
    with pytest.raises(InputError, match="24 position embeddings are no grid of 5 x 5"):
        resize_positions(grid, (5, 5), (8, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 30}, "img_size of 30 x 30 pixels is no whole number of patches of 4 x 4"),
        ({"registers": 17}, "17 registers need an image of at least 18 patches, not 16"),
        ({"registers": 2, "reduce": 3}, "embed_dim 16 is no multiple of reduce 3"),
        ({"slws_rate": 1.2}, "rate is 1.2"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1.0"),
        ({"depth": 0}, "depth is 0"),
        ({"global_pool": "max"}, "unknown global_pool 'max'"),
        ({"class_position": "end"}, "unknown class_position 'end'"),
        ({"num_classes": -1}, "num_classes is -1"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        make(**options)


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="images of 20 x 16 pixels; the model takes 16 x 16"):
        make()(torch.randn(1, 3, 20, 16))
    with pytest.raises(InputError, match=r"shape \(1, 1, 16, 16\); it must be \(batch, 3, height, width\)"):
        make()(torch.randn(1, 1, 16, 16))
    for dtype in (torch.uint8, torch.complex64):
        with pytest.raises(InputError, match=f"images are {dtype}"):
            make()(torch.zeros(1, 3, 16, 16, dtype=dtype))
    with pytest.raises(InputError, match="NaN"):
        make()(torch.full((1, 3, 16, 16), float("nan")))
    with pytest.raises(InputError, match="built for one way of pooling"):
        make(registers=2).reset_classifier(3, "avg")
