"""The network: its shapes, its parts against plain formulas, and who gets gradients."""

import pytest
import torch
from torch import nn

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.blocks import ChannelAttention, SpatialAttention
from hexad.vision_robustness.costfilter_ad.network import GUIDED, CostFilterNet, NetworkConfig


def inputs(config, batch=2, size=16, grid=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    volume = torch.rand(batch, config.match_dim, config.depth, size, size, generator=generator)
    features = [torch.randn(batch, c, grid, grid, generator=generator) for c in config.feature_dims]
    return volume, features, torch.rand(batch, config.depth, size, size, generator=generator)


def small(**changes):
    return NetworkConfig(**{"match_dim": 5, "feature_dims": (6, 4), "n_classes": 3, "width": 8} | changes)


@pytest.mark.parametrize("dims", [(6,), (6, 4), (3, 4, 5), (3, 4, 5, 6)])
def test_any_depth_gives_two_logits_a_place_and_one_a_class(dims):
    torch.manual_seed(0)
    config = small(feature_dims=dims)
    logits, classes = CostFilterNet(config)(*inputs(config, size=32))
    assert logits.shape == (2, 2, 32, 32)
    assert classes.shape == (2, 3)


def test_guiding_layers_are_those_of_the_authors_networks():
    # Dinomaly's network has two layers, the first at b1 and b3, the second at b4 and b6; GLAD's four.
    assert [small().guide_of(place) for place in range(4)] == [0, 0, 1, 1]
    assert [small(feature_dims=(1, 1, 1, 1)).guide_of(place) for place in range(4)] == [0, 1, 2, 3]
    assert GUIDED == (1, 3, 4, 6)


def test_the_papers_network_has_its_widths_and_its_three_dimensional_kernels():
    with torch.device("meta"):
        network = CostFilterNet(NetworkConfig(match_dim=768, feature_dims=(768, 768), n_classes=15))
    assert [block[1][0].out_channels for block in network.encoder] == [48, 96, 96, 192, 288, 384]
    assert [layer[0].out_channels for layer in network.stem] == [192, 96]
    assert network.stem[0][0].in_channels == 768
    assert network.bottom[0][0].in_channels == 14 * 48
    assert network.collapse.kernel_size == (2, 1, 1)
    assert network.class_attention.bottleneck[0].in_channels == 144
    assert all(block[0][0].kernel_size == (3, 3, 3) for block in network.encoder)
    assert network.guides[0].attention[1].conv.kernel_size == (7, 7, 7)
    # Counted by hand from the authors' file, without their convolution that is never called.
    w, depth, features = 48, 2, (768, 768, 768, 768)

    def conv(inputs, outputs, kernel, norm=True):
        return inputs * outputs * kernel + (3 if norm else 1) * outputs

    def channel(width, reduction):
        return 2 * width * (width // reduction)

    def double(inputs, inner, outputs):
        return conv(inputs, inner, 27) + conv(inner, outputs, 27)

    count = conv(768, 4 * w, 1) + conv(4 * w, 2 * w, 1)
    for inputs, outputs in ((2, 1), (1, 2), (2, 2), (2, 4), (4, 6), (6, 8)):
        count += double(inputs * w, outputs * w, outputs * w)
    for width, inputs in zip((w, 2 * w, 4 * w, 8 * w), features, strict=True):
        count += conv(inputs, width, 1) + conv(depth, width, 1) + 2 * conv(width, width, 27)
        count += channel(3 * width, 16) + 2 * 343 + conv(3 * width, width, 1)
    count += double(14 * w, 8 * w, 8 * w)
    for inputs, outputs in ((8, 4), (4, 2), (2, 1), (1, 1)):
        count += conv(inputs * w, outputs * w, 27)
    count += double(8 * w, 4 * w, 4 * w) + double(4 * w, 2 * w, 2 * w) + double(3 * w, w, w)
    count += double(2 * w, 2 * w, w)
    count += channel(4 * w, 8) + 2 * channel(w, 8) + 3 * 2 * 27
    count += conv(w, w, depth, norm=False) + channel(w, 4) + 2 + 2
    count += channel(3 * w, 16) + conv(3 * w, w, 27, norm=False) + 15 * w + 15
    assert sum(p.numel() for p in network.parameters()) == count


def test_attention_equals_its_formula():
    torch.manual_seed(0)
    x = torch.randn(2, 8, 2, 5, 5)
    channel = ChannelAttention(8, 4)
    first, second = channel.bottleneck[0].weight.flatten(1), channel.bottleneck[2].weight.flatten(1)
    pooled = sum(torch.relu(p @ first.T) @ second.T for p in (x.mean((2, 3, 4)), x.amax((2, 3, 4))))
    torch.testing.assert_close(channel(x), x * (1 + torch.sigmoid(pooled))[:, :, None, None, None])
    spatial = SpatialAttention(3)
    weights = spatial.conv(torch.stack((x.mean(1), x.amax(1)), 1))
    torch.testing.assert_close(spatial(x), x * (1 + torch.sigmoid(weights)))


def test_the_map_is_the_minimum_over_channels_and_grows_with_none_of_them():
    torch.manual_seed(0)
    config = small()
    network = CostFilterNet(config).eval()
    seen = {}
    network.head_attention.register_forward_hook(lambda m, i, o: seen.update(out=o))
    network.head.register_forward_hook(lambda m, i, o: seen.update(least=i[0]))
    network(*inputs(config))
    assert torch.equal(seen["least"][:, 0], seen["out"].min(1).values[:, 0])


def test_the_depth_axis_is_used():
    torch.manual_seed(0)
    config = small(feature_dims=(4, 4))
    network = CostFilterNet(config).eval()
    volume, features, maps = inputs(config)
    assert not torch.allclose(network(volume, features, maps)[0], network(volume.flip(2), features, maps)[0])


def test_gradients_reach_every_branch():
    torch.manual_seed(0)
    config = small(width=32)
    network = CostFilterNet(config)
    volume, features, maps = inputs(config)
    for tensor in (volume, maps, *features):
        tensor.requires_grad_()
    logits, classes = network(volume, features, maps)
    (logits.square().sum() + classes.square().sum()).backward()
    for tensor in (volume, maps, *features):
        assert tensor.grad.abs().sum() > 0
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        # A bias before a batch norm has a gradient of zero, and a ReLU of two units may start out dead.
        if not name.endswith("bias") and "bottleneck" not in name:
            assert parameter.grad.abs().sum() > 0, name


def test_evaluation_is_deterministic_and_does_not_depend_on_the_batch():
    torch.manual_seed(0)
    config = small()
    network = CostFilterNet(config)
    network(*inputs(config))
    network.eval()
    volume, features, maps = inputs(config, batch=3)
    first, again = (network(volume, features, maps)[0] for _ in range(2))
    assert torch.equal(first, again)
    alone = network(volume[1:2], [layer[1:2] for layer in features], maps[1:2])[0]
    torch.testing.assert_close(alone, first[1:2], atol=1e-4, rtol=1e-4)


def test_without_guidance_features_and_maps_change_nothing():
    torch.manual_seed(0)
    config = small(guidance=False)
    network = CostFilterNet(config).eval()
    volume, features, maps = inputs(config)
    other = inputs(config, seed=1)
    assert torch.equal(network(volume, features, maps)[0], network(volume, other[1], other[2])[0])
    guided = CostFilterNet(small()).eval()
    assert not torch.equal(guided(volume, features, maps)[0], guided(volume, other[1], maps)[0])
    assert not torch.equal(guided(volume, features, maps)[0], guided(volume, features, other[2])[0])


def test_weights_start_as_kaimings_by_fan_out():
    torch.manual_seed(0)
    weight = CostFilterNet(small(width=16)).encoder[5][1][0].weight
    assert weight.std().item() == pytest.approx((2 / (weight.shape[0] * 27)) ** 0.5, rel=0.02)
    modules = CostFilterNet(small()).modules()
    biases = [m.bias for m in modules if isinstance(m, nn.Conv3d) and m.bias is not None]
    assert biases
    assert all(bias.abs().max() == 0 for bias in biases)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 12}, "multiple of 8"),
        ({"width": 4}, "width is 4"),
        ({"match_dim": 0}, "match_dim is 0"),
        ({"n_classes": 0}, "n_classes is 0"),
        ({"feature_dims": ()}, "feature_dims is empty"),
        ({"stem": 6}, "stem is 6"),
        ({"guidance": "yes"}, "guidance is 'yes'"),
    ],
)
def test_nonsense_in_the_configuration_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        small(**changes)


def test_inputs_of_other_shapes_are_refused():
    config = small()
    network = CostFilterNet(config)
    volume, features, maps = inputs(config)
    with pytest.raises(InputError, match=r"the volume is .*must be \(batch, 5, 2"):
        network(volume[:, :4], features, maps)
    with pytest.raises(InputError, match="multiple of 16"):
        network(volume[..., :12, :12], features, maps[..., :12, :12])
    with pytest.raises(InputError, match="the maps are"):
        network(volume, features, maps[:, :1])
    with pytest.raises(InputError, match="the network takes"):
        network(volume, features[:1], maps)
