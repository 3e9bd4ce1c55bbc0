"""SLWS around the blocks of models: what changes, what must not, and what is refused."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import timm
import torch
from torch import nn

from hexad.core.errors import InputError
from hexad.vision_robustness.shufflemamba import (
    SLWS,
    VimBlock,
    VisionMamba,
    apply_slws,
    forced_shuffle,
    layer_probs,
    remove_slws,
    slws_rate,
)


class Counting(nn.Module):
    """A block that writes down in which order it sees its tokens."""

    def __init__(self):
        super().__init__()
        self.orders = []

    def forward(self, x, residual=None):
        self.orders.append(x[0, :, 0].long().tolist())
        return x if residual is None else (x, residual)


class Stack(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Counting() for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


IDS = torch.arange(6.0).reshape(1, 6, 1)


def vim(depth=4, **options):
    torch.manual_seed(0)
    return VisionMamba(
        img_size=16, patch_size=4, embed_dim=16, depth=depth, d_state=4, num_classes=5, **options
    )


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_each_layer_is_shuffled_at_its_own_rate():
    model = apply_slws(Stack(), 0.6).train()
    torch.manual_seed(0)
    for _ in range(3_000):
        assert torch.equal(model(IDS), IDS)  # restored after every layer
    straight = list(range(6))
    for block, p in zip(model.blocks, layer_probs(4, 0.6), strict=True):
        # One of the 720 permutations is the identity.
        rate = sum(order != straight for order in block.orders) / 3_000 * 720 / 719
        assert abs(rate - p) <= 3 * (p * (1 - p) / 3_000) ** 0.5
    assert all(order == straight for order in model.blocks[0].orders)


def test_layers_are_drawn_independently():
    model = apply_slws(Stack(3), 1.0, lambda place: 1.0).train()
    model(IDS)
    orders = [tuple(block.orders[0]) for block in model.blocks]
    assert len(set(orders)) > 1


def test_evaluation_is_bit_for_bit_the_same_and_draws_nothing(images):
    model = vim().eval()
    plain = model(images)
    apply_slws(model, 1.0)
    state = torch.get_rng_state()
    assert torch.equal(model(images), plain)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(model.train()(images), plain)


def test_names_of_weights_stay_the_same():
    model = vim()
    before = list(model.state_dict()), [name for name, _ in model.named_modules()]
    apply_slws(model)
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == before
    remove_slws(model)
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == before


def test_removing_it_leaves_nothing(images):
    model = vim().train()
    plain = model(images)
    remove_slws(apply_slws(model, 1.0))
    assert torch.equal(model(images), plain)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    apply_slws(model)  # and it can come again


def test_hidden_states_and_residual_share_their_permutation():
    # With a mixer that gives zero the residual stream must come out as it went in, whatever was shuffled.
    model = vim(depth=5)
    for block in model.layers:
        nn.init.zeros_(block.mixer.out_proj.weight)
    apply_slws(model, 1.0, lambda place: 1.0).train()
    x = torch.randn(2, 17, 16)
    hidden, residual = x, None
    for block in model.layers:
        hidden, residual = block(hidden, residual)
    assert torch.equal(residual + hidden, x)


def test_the_class_token_is_shuffled_too():
    model = apply_slws(Stack(2), 1.0).train()
    torch.manual_seed(0)
    for _ in range(50):
        model(IDS)
    assert len({order[0] for order in model.blocks[1].orders}) == 6


def test_a_deep_copy_has_a_shuffle_of_its_own(images):
    model = apply_slws(vim(), 0.5)
    twin = copy.deepcopy(model)
    remove_slws(model)
    torch.manual_seed(1)
    shuffled = twin.train()(images)
    assert not torch.equal(shuffled, twin.eval()(images))
    assert torch.equal(model.train()(images), twin(images))
    remove_slws(twin)
    assert torch.equal(twin.train()(images), model(images))


def test_a_whole_model_can_be_saved_and_loaded(images):
    file = io.BytesIO()
    torch.save(apply_slws(vim(), 1.0), file)
    file.seek(0)
    model = torch.load(file, weights_only=False).train()
    assert not torch.equal(model(images), model.eval()(images))
    remove_slws(model)


def test_another_rate_for_a_while():
    model = apply_slws(Stack(2), 0.0).train()
    with slws_rate(model, 1.0):
        for _ in range(20):
            model(IDS)
    assert any(order != list(range(6)) for order in model.blocks[1].orders)
    model.blocks[1].orders.clear()
    for _ in range(20):
        model(IDS)
    assert all(order == list(range(6)) for order in model.blocks[1].orders)
    with pytest.raises(InputError, match="Stack has no SLWS; call apply_slws first"), slws_rate(Stack(), 0.5):
        pass


def test_seeds_and_generators_repeat():
    orders = []
    for _ in range(2):
        model = apply_slws(Stack(), 1.0, generator=torch.Generator().manual_seed(7)).train()
        torch.rand(1)  # what the global generator does is of no matter
        for _ in range(5):
            model(IDS)
        orders.append([block.orders for block in model.blocks])
    assert orders[0] == orders[1]


def test_activation_checkpointing_replays_the_permutations(images):
    gradients = []
    for enable in (False, True):
        model = apply_slws(vim(), 1.0, lambda place: 1.0).train()
        model.set_grad_checkpointing(enable)
        torch.manual_seed(3)
        model(images).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, replayed in zip(*gradients, strict=True):
        torch.testing.assert_close(replayed, plain, atol=1e-6, rtol=1e-5)
    model = apply_slws(vim(), 1.0, generator=torch.Generator()).train()
    model.set_grad_checkpointing()
    total = model(images).sum()
    # In a thread of its own: after an error PyTorch keeps the rest of the graph for the thread, and at the
    # end of the process frees it without Python, which crashes.
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="leave out `generator`"):
        pool.submit(total.backward).result()


def test_torch_compile_computes_the_same(images):
    model = apply_slws(vim(depth=2), 1.0, lambda place: 1.0).train()
    compiled = torch.compile(model, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = model(images)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(images), expected, atol=1e-6, rtol=1e-5)


def test_a_transformer_of_timm_is_shuffled_without_effect(images):
    # Its blocks know no order, so shuffling must change nothing beyond rounding.
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, depth=3, embed_dim=24, num_heads=2, num_classes=5
    ).train()
    plain = model(images)
    apply_slws(model, 1.0, lambda place: 1.0)
    torch.testing.assert_close(model(images), plain, atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="attn_mask, which is tied to the order"):
        model.blocks[0](torch.randn(1, 17, 24), attn_mask=torch.zeros(17, 17))


def test_blocks_that_take_keywords():
    class Keywords(nn.Module):
        def forward(self, *, residual, hidden_states):
            self.seen = hidden_states, residual
            return {"hidden_states": hidden_states, "residual": residual, "count": 3}

    layer = SLWS(Keywords(), 1.0)
    torch.manual_seed(0)
    out = layer(hidden_states=IDS, residual=IDS + 10)
    assert out["count"] == 3
    assert torch.equal(out["hidden_states"], IDS)
    assert torch.equal(out["residual"], IDS + 10)
    hidden, residual = layer.block.seen
    assert not torch.equal(hidden, IDS)
    assert torch.equal(residual, hidden + 10)


def test_blocks_that_take_a_mapping():
    class Dictionary(nn.Module):
        def forward(self, streams):
            self.seen = streams
            return {name: value for name, value in streams.items() if name != "n"}

    layer = SLWS(Dictionary(), 1.0)
    torch.manual_seed(0)
    out = layer({"a": IDS, "b": IDS + 10, "n": 1})
    assert torch.equal(out["a"], IDS)
    assert torch.equal(out["b"], IDS + 10)
    assert layer.block.seen["n"] == 1
    assert not torch.equal(layer.block.seen["a"], IDS)
    assert torch.equal(layer.block.seen["b"], layer.block.seen["a"] + 10)


def test_streams_can_be_named():
    class Conditioned(nn.Module):
        def forward(self, tokens, condition):
            self.seen = tokens
            return tokens + condition[:, None]

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Conditioned(), Conditioned()])

    condition = torch.ones(1, 1)
    model = apply_slws(Holder(), 1.0).train()
    with pytest.raises(InputError, match=r"shape \(1, 1\) does not fit the hidden states"):
        model.blocks[1](IDS, condition)
    model = apply_slws(Holder(), 1.0, streams=["tokens"]).train()
    torch.manual_seed(0)
    assert torch.equal(model.blocks[1](IDS, condition), IDS + 1)
    assert not torch.equal(model.blocks[1].seen, IDS)
    model = apply_slws(Holder(), 1.0, streams=["toknes"]).train()
    with pytest.raises(InputError, match=r"name those of its forward \(tokens, condition\)"):
        model.blocks[1](IDS, condition)


def test_the_module_wraps_one_block():
    layer = SLWS(Counting(), 1.0).train()
    torch.manual_seed(0)
    assert torch.equal(layer(IDS), IDS)
    assert layer.block.orders[0] != list(range(6))
    assert "p=1" in repr(layer)


def test_forced_shuffle_takes_the_last_blocks_in_evaluation():
    model = Stack(4).eval()
    with forced_shuffle(model, 0.5, generator=torch.Generator().manual_seed(0)):
        assert torch.equal(model(IDS), IDS)
    shuffled = [block.orders[0] != list(range(6)) for block in model.blocks]
    assert shuffled == [False, False, True, True]
    model(IDS)
    assert model.blocks[3].orders[1] == list(range(6))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.lm_head = nn.Linear(2, 2)


def test_what_cannot_be_shuffled_is_refused():
    with pytest.raises(InputError, match=r"rate is -0.1"):
        apply_slws(Stack(), -0.1)
    with pytest.raises(InputError, match=r"Linear has no list of blocks; looked for blocks, layers, encoder"):
        apply_slws(nn.Linear(2, 2))
    with pytest.raises(InputError, match="no list of blocks called 'stages'"):
        apply_slws(Stack(), layers="stages")
    with pytest.raises(InputError, match=r"LanguageModel predicts the next token .*allow_causal=True"):
        apply_slws(LanguageModel())
    apply_slws(LanguageModel(), allow_causal=True)
    with pytest.raises(InputError, match="applied twice"):
        apply_slws(apply_slws(Stack()))
    with pytest.raises(InputError, match="applied twice"):
        SLWS(SLWS(Counting(), 0.5).block, 0.5)
    with pytest.raises(InputError, match="Stack has no SLWS to remove"):
        remove_slws(Stack())
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        apply_slws("vim")
    model = apply_slws(vim(), 1.0).train()
    with pytest.raises(InputError, match=r"residual of shape \(1, 4, 16\)"):
        model.layers[3](torch.randn(1, 5, 16), torch.randn(1, 4, 16))
    with pytest.raises(InputError, match=r"Counting was called with a tensor of shape \(1, 2, 3, 3\)"):
        apply_slws(Stack(), 1.0).train()(torch.zeros(1, 2, 3, 3))
    with pytest.raises(InputError, match="no tokens"):
        model.layers[3](torch.randn(1, 0, 16), torch.randn(1, 0, 16))


def test_the_longest_list_of_like_blocks_is_found():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
            self.trunk_of_mine = nn.ModuleList(Counting() for _ in range(3))

    model = apply_slws(Odd(), 1.0)
    assert [hasattr(block, "_slws") for block in model.trunk_of_mine] == [True] * 3


def test_two_shuffles_of_one_block_are_undone_in_reverse():
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Identity() for _ in range(3))
    apply_slws(model, 1.0, lambda place: 1.0)
    model.train()
    tokens = torch.arange(7.0).reshape(1, 7, 1)
    for seed in range(5):
        torch.manual_seed(seed)
        x = tokens
        with forced_shuffle(model, 1.0):
            for block in model.blocks:
                x = block(x)
        assert torch.equal(x, tokens)


def test_the_projects_own_block_by_keywords():
    torch.manual_seed(0)
    block = VimBlock(8, 4)
    hidden, residual = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    model = nn.Module()
    model.blocks = nn.ModuleList([block])
    expected = block(hidden=hidden, residual=residual)[1]
    apply_slws(model, 1.0, lambda place: 1.0).train()
    for _ in range(5):
        torch.testing.assert_close(block(hidden=hidden, residual=residual)[1], expected)


def test_streams_are_parameters_of_the_forward():
    model = nn.Module()
    model.blocks = nn.ModuleList([VimBlock(8, 4)])
    apply_slws(model, 1.0, lambda place: 1.0, streams=["hidden", "residul"]).train()
    with pytest.raises(InputError, match=r"VimBlock takes no 'residul'; name those of its forward \(hidden"):
        model.blocks[0](torch.randn(1, 3, 8))


def test_a_small_share_still_shuffles_one_block():
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Identity() for _ in range(8))
    for share, count in ((0.0, 0), (0.05, 1), (0.5, 4), (1.0, 8)):
        with forced_shuffle(model, share):
            assert sum(len(block._forward_pre_hooks) for block in model.blocks) == count


class Recording(nn.Module):
    """A stack of blocks that are called with what a test hands on."""

    def __init__(self, block, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(depth))


def shuffled_block(block, **options):
    return apply_slws(Recording(block), 1.0, lambda place: 1.0, **options).train().blocks[1]


def test_masks_and_positions_are_refused_by_whatever_name():
    def encoder():
        return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    tokens = torch.randn(2, 6, 4)
    for options in (
        {"src_mask": torch.zeros(6, 6)},
        {"src_key_padding_mask": torch.zeros(2, 6, dtype=torch.bool)},
        {"is_causal": True, "src_mask": torch.zeros(6, 6)},
    ):
        with pytest.raises(InputError, match="which is tied to the order of its tokens"):
            shuffled_block(encoder)(tokens, **options)
    with pytest.raises(InputError, match="called with src_mask, which is tied"):
        shuffled_block(encoder)(tokens, torch.zeros(6, 6))  # by its place
    shuffled_block(encoder)(tokens, src_mask=None, is_causal=False)

    class Rotary(nn.Module):
        def forward(self, x, rope=None):
            return x

    with pytest.raises(InputError, match="called with rope, which is tied"):
        shuffled_block(Rotary)(tokens, rope=torch.zeros(6, 4))


def test_a_tensor_that_may_belong_to_the_tokens_must_be_named():
    class Two(nn.Module):
        def forward(self, x=None, memory=None, residual=None, scale=None):
            self.seen = x, memory
            return x

    tokens = torch.arange(12.0).reshape(2, 6, 1)
    with pytest.raises(InputError, match=r"memory of shape \(2, 6, 1\), which may belong to its 6 tokens"):
        shuffled_block(Two)(residual=tokens, memory=tokens)
    block = shuffled_block(Two, streams=["x", "memory"])
    block(x=tokens, memory=tokens)
    assert torch.equal(*block.seen)
    assert not torch.equal(block.seen[0], tokens)
    block = shuffled_block(Two)
    assert torch.equal(block(x=tokens, scale=torch.ones(2, 3)), tokens)  # of no six places


def test_a_block_that_stands_twice_is_refused():
    block = Counting()
    model = nn.Module()
    model.blocks = nn.ModuleList([block, Counting(), block])
    with pytest.raises(InputError, match="a block stands twice among the blocks of Module"):
        apply_slws(model)
    assert not block._forward_pre_hooks


def test_another_rate_keeps_the_schedule():
    model = apply_slws(Stack(4), 0.2, "constant")
    with slws_rate(model, 1.0):
        assert [block._slws.p for block in model.blocks] == [0.0, 1.0, 1.0, 1.0]
    assert [block._slws.p for block in model.blocks] == [0.0, 0.2, 0.2, 0.2]
    with slws_rate(model, 0.9, "linear"):
        assert [block._slws.p for block in model.blocks] == pytest.approx([0, 0.3, 0.6, 0.9])
    model = nn.Module()
    model.blocks = nn.ModuleList(SLWS(Counting(), 0.5) for _ in range(2))
    with pytest.raises(InputError, match="pass `schedule`"), slws_rate(model, 0.1):
        pass


def test_arguments_of_the_wrong_kind_are_one_line():
    with pytest.raises(InputError, match="`layers` must be modules"):
        apply_slws(Stack(), layers=3)
    with pytest.raises(InputError, match=r"generator must be a torch\.Generator of the CPU, or None, not 3"):
        apply_slws(Stack(), generator=3)
    with pytest.raises(InputError, match="slws_rate"):
        vim(slws_rate=None)
    with pytest.raises(InputError, match="the patch size is"):
        VisionMamba(patch_size=0)
    with pytest.raises(InputError, match="in_chans is 0"):
        VisionMamba(in_chans=0)
    with pytest.raises(InputError, match=r"img_size is \(16,\); it must be one number"):
        VisionMamba(img_size=(16,), patch_size=4)
    with pytest.raises(InputError, match=r"hidden states have the shape \(1, 5, 8\); they must be"):
        VimBlock(16, 4)(torch.randn(1, 5, 8))


def make(forward, depth=2):
    """A stack of two blocks with this forward, shuffled in every pass."""
    kind = type("Made", (nn.Module,), {"forward": forward})
    return apply_slws(Recording(kind, depth), 1.0, lambda place: 1.0).train().blocks[1]


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda self, x: x[:, ::2], r"a tensor of shape \(2, 3, 4\) for 2 samples of 6 tokens"),
        (lambda self, x: x.mT, r"a tensor of shape \(2, 4, 6\)"),
        (lambda self, x: (x, x.flatten(0, 1)), r"a tensor of shape \(12, 4\)"),
        (lambda self, x: {"hidden": x, "attentions": x @ x.mT[:, None]}, r"a tensor of shape \(2, 2, 6, 6\)"),
        (lambda self, x: x.mean(), r"a block gave no tensor of \(2, 6, \.\.\.\)"),
    ],
)
def test_outputs_that_cannot_be_put_in_order_are_refused(forward, words):
    x = torch.arange(48.0).reshape(2, 6, 4)
    block = make(forward)
    with pytest.raises(InputError, match=words):
        block(x)
    block._slws.p = 1e-9  # also where nothing was drawn, so that it does not show late
    with pytest.raises(InputError, match=words):
        block(x)


def test_numbers_and_vectors_may_stand_beside_the_tokens():
    x = torch.arange(48.0).reshape(2, 6, 4)
    out, loss, counts = make(lambda self, x: (x, x.mean(), torch.arange(3)))(x)
    assert torch.equal(out, x)
    assert loss == x.mean()
    assert counts.tolist() == [0, 1, 2]


def test_lists_of_lists_and_compiled_models_are_refused():
    with pytest.raises(InputError, match=r"blocks of .* are lists of modules, which are never called"):
        apply_slws(timm.create_model("twins_pcpvt_small", img_size=32, num_classes=3))
    compiled = torch.compile(vim(), backend="eager")
    with pytest.raises(InputError, match="hooks do not reach into a compiled model"):
        apply_slws(compiled)
    with pytest.raises(InputError, match="hooks do not reach"), forced_shuffle(compiled):
        pass


def test_tokens_that_come_before_samples_are_refused():
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    with pytest.raises(InputError, match="make it with batch_first=True"):
        apply_slws(nn.TransformerEncoder(layer, 3))
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    apply_slws(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.LSTM(4, 4) for _ in range(2))
    with pytest.raises(InputError, match="LSTM takes"):
        apply_slws(model)


def test_tensors_in_tuples_and_of_other_shapes_must_be_named():
    x = torch.arange(36.0).reshape(2, 3, 6)

    def forward(self, x, more=None):
        return x

    with pytest.raises(InputError, match=r"more of shape \(3, 6\), which may belong to its 3 tokens"):
        make(forward)(x, more=(torch.zeros(3, 6), torch.zeros(3, 6)))
    with pytest.raises(InputError, match=r"more of shape \(2, 3, 3\)"):
        make(forward)(x, torch.zeros(2, 3, 3))
    with pytest.raises(InputError, match=r"more of shape \(2, 3\)"):
        make(forward)(x, torch.zeros(2, 3))


def test_threads_have_permutations_of_their_own():
    import time

    def forward(self, x):
        time.sleep(0.02)
        return x

    block, x = make(forward), torch.arange(24.0).reshape(1, 24, 1)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(out, x) for out in pool.map(lambda _: block(x), range(12)))


def test_a_mapping_keeps_its_kind():
    class Streams(dict):
        @property
        def h(self):
            return self["h"]

    class Block(nn.Module):
        def forward(self, streams):
            return {"h": streams.h}

    given = Streams(h=IDS)
    block = SLWS(Block(), 1.0)
    assert torch.equal(block(given)["h"], IDS)
    assert torch.equal(given.h, IDS)


def test_streams_are_a_list_of_names():
    for streams in (3, "x", [1]):
        with pytest.raises(InputError, match="streams must be a list of names"):
            apply_slws(Stack(), streams=streams)


def test_a_call_that_failed_leaves_nothing_behind():
    def forward(self, x):
        if self.training:
            raise MemoryError
        return x

    block = make(forward)
    torch.manual_seed(0)
    with pytest.raises(MemoryError):
        block(IDS)
    assert torch.equal(block.eval()(IDS), IDS)
