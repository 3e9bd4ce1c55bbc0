"""Surgery on whole models, and the alignment of their gradients."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest import (
    PackedLinear,
    QuestConfig,
    QuestLinear,
    convert,
    gradient_alignment,
    load_packed,
    prepare,
    save_packed,
)


class Toy(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 64)
        self.up = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)
        self.down = nn.Linear(128, 64)
        self.drop = nn.Dropout(0.1)
        self.lm_head = nn.Linear(64, 10, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        return self.lm_head(self.drop(self.down(self.norm(self.up(self.embed_tokens(ids))))))


def kinds(model):
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if "Linear" in type(module).__name__
    }


IDS = torch.arange(20).reshape(2, 10) % 10


def loss(model, ids):
    return model(ids).square().mean()


def test_what_is_quantised():
    model = Toy(tied=True)
    parameters = dict(model.named_parameters())
    assert prepare(model, QuestConfig(2, 2)) is model
    assert kinds(model) == {"up": "QuestLinear", "down": "QuestLinear", "lm_head": "Linear"}
    assert {name: id(p) for name, p in model.named_parameters()} == {n: id(p) for n, p in parameters.items()}
    assert model.lm_head.weight is model.embed_tokens.weight
    assert model.up.config == QuestConfig(2, 2)

    chosen = prepare(Toy(), filter_fn=lambda module, name: module.in_features == 128)
    assert kinds(chosen) == {"up": "Linear", "down": "QuestLinear", "lm_head": "Linear"}
    everything = prepare(Toy(), QuestConfig(skip=()))
    assert set(kinds(everything).values()) == {"QuestLinear"}
    assert isinstance(prepare(nn.Linear(64, 4)), QuestLinear)


def test_state_dicts_are_those_of_the_plain_model():
    plain, prepared = Toy(), prepare(Toy())
    prepared.load_state_dict(plain.state_dict())
    plain.load_state_dict(prepared.state_dict())


def test_the_mode_is_kept():
    model = Toy().eval()
    assert not prepare(model).up.training


def test_convert_computes_what_was_prepared():
    torch.manual_seed(0)
    model = prepare(Toy(), QuestConfig(2, 2)).eval()
    with torch.no_grad():
        before = model(IDS)
    assert convert(model) is model
    assert kinds(model) == {"up": "PackedLinear", "down": "PackedLinear", "lm_head": "Linear"}
    # Without no_grad too: nothing in it trains any more.
    torch.testing.assert_close(model(IDS), before, rtol=0, atol=1e-5)
    assert isinstance(convert(prepare(nn.Linear(64, 4))), PackedLinear)


def test_gradient_alignment():
    torch.manual_seed(0)
    fine = gradient_alignment(prepare(Toy(), QuestConfig(16, 16, trust="none")), IDS, loss, weights=True)
    assert set(fine) == {"up", "down"}
    assert min(fine.values()) > 0.9999
    torch.manual_seed(0)
    coarse = gradient_alignment(prepare(Toy(), QuestConfig(1, 1)), IDS, loss)
    assert 0 < max(coarse.values()) < 0.99
    assert max(gradient_alignment(prepare(Toy(), QuestConfig(4, None)), IDS, loss).values()) == pytest.approx(
        1
    )


def test_gradient_alignment_leaves_the_model_alone():
    model = prepare(Toy(), QuestConfig(2, 2)).train()
    state = torch.get_rng_state()
    first = gradient_alignment(model, IDS, loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert model.up.rounds_activations
    assert gradient_alignment(model, IDS, loss) == first, "dropout draws the same"


def same_objects(model):
    return [(name, id(module)) for name, module in model.named_modules()]


def odd():
    model = Toy()
    model.down = nn.Linear(127, 64)
    return model


def spoilt(value):
    model = Toy()
    with torch.no_grad():
        model.down.weight[0, 0] = value
    return model


class SharedLinear(Toy):
    def __init__(self):
        super().__init__()
        self.classify = nn.Linear(64, 10, bias=False)
        self.lm_head.weight = self.classify.weight


@pytest.mark.parametrize(
    ("model", "arguments", "text"),
    [
        (odd(), {}, "down: rows of 127 entries leave a Hadamard block of 1"),
        (spoilt(float("nan")), {}, "down: the weight holds NaN or infinity"),
        (Toy().to(torch.complex64), {}, "torch.complex64; give floating-point"),
        (SharedLinear(), {}, "the weight of classify is shared with lm_head.weight"),
        (
            Toy(tied=True),
            {"config": QuestConfig(skip=("embed",))},
            "lm_head is shared with embed_tokens.weight",
        ),
        (nn.Sequential(nn.ReLU()), {}, "holds no nn.Linear"),
        (Toy(), {"filter_fn": lambda module, name: False}, "holds no nn.Linear"),
        (prepare(Toy()), {}, "holds 2 QuestLinear layers already"),
        (convert(prepare(Toy())), {}, "holds 2 PackedLinear layers already"),
        (
            nn.ModuleDict({"a": nn.MultiheadAttention(64, 2), "b": nn.Linear(64, 64)}),
            {},
            "a is an nn.MultiheadAttention",
        ),
        (
            nn.ModuleDict({"layer": nn.TransformerEncoderLayer(64, 2)}),
            {"config": QuestConfig(skip=("self_attn",))},
            "goes past its linear layers",
        ),
        (Toy(), {"config": 4}, "config must be a QuestConfig, not int"),
        ("model", {}, "model must be an nn.Module, not str"),
    ],
)
def test_prepare_refuses_and_changes_nothing(model, arguments, text):
    before = same_objects(model) if isinstance(model, nn.Module) else None
    with pytest.raises(InputError, match=text):
        prepare(model, **arguments)
    assert before is None or same_objects(model) == before


def test_integer_weights_are_refused():
    linear = nn.Linear(64, 4)
    linear.weight = nn.Parameter(torch.ones(4, 64, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"torch\.int8; give floating-point"):
        prepare(nn.Sequential(linear))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Toy(), "is not prepared: it holds no QuestLinear"),
        (convert(prepare(Toy())), "converted already"),
        (prepare(Toy(), QuestConfig(16, 4)), "up: codes of 16 bits are not packed"),
        (prepare(Toy(), QuestConfig(4, 16)), "up: activations of 16 bits"),
        (None, "model must be an nn.Module, not NoneType"),
    ],
)
def test_convert_refuses_and_changes_nothing(model, text):
    before = same_objects(model) if isinstance(model, nn.Module) else None
    with pytest.raises(InputError, match=text):
        convert(model)
    assert before is None or same_objects(model) == before


def test_alignment_refuses():
    with pytest.raises(InputError, match="no QuestLinear that trains"):
        gradient_alignment(Toy(), IDS, loss)
    with pytest.raises(InputError, match="give a mapping with labels, or a loss"):
        gradient_alignment(prepare(Toy()), IDS)


class Sub(nn.Linear):
    pass


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(4, 64, 32))
        self.positions = nn.Parameter(torch.zeros(1, 9, 64))  # no stack of matrices


def with_part(part):
    model = Toy()
    model.add_module("part", part)
    return model


def test_what_would_stay_in_full_precision_silently_is_refused():
    with pytest.raises(InputError, match=r"part is a Sub, a kind of nn.Linear that may not compute as one"):
        prepare(with_part(Sub(64, 8)))
    with pytest.raises(InputError, match="part is a LazyLinear"):
        prepare(with_part(nn.LazyLinear(8)))
    with pytest.raises(InputError, match=r"part.gate_up holds 4 matrices in one parameter .*'part' in skip"):
        prepare(with_part(Experts()))
    for part in (Sub(64, 8), Experts()):
        model = prepare(with_part(part), QuestConfig(skip=("lm_head", "embed", "part")))
        assert kinds(model)["up"] == "QuestLinear"
    assert kinds(prepare(with_part(Sub(64, 8)), filter_fn=lambda module, name: name == "up"))

    class Conv1D(nn.Module):
        pass

    with pytest.raises(InputError, match=r"its Conv1D layers \(GPT-2's\) are none"):
        prepare(nn.Sequential(Conv1D()))


def test_a_layer_that_is_used_twice(tmp_path):
    torch.manual_seed(0)

    def make():
        twice = nn.Linear(64, 64)
        return nn.Sequential(twice, nn.GELU(), twice, nn.Linear(64, 3))

    model = prepare(make(), QuestConfig(3, 3))
    assert model[0] is model[2]
    assert isinstance(model[2], QuestLinear)
    x = torch.randn(5, 64)
    with torch.no_grad():
        before = model(x)
        convert(model)
        assert model[0] is model[2]
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-5)
        loaded = load_packed(make(), save_packed(model, tmp_path / "twice.safetensors"))
        assert loaded[0] is loaded[2]
        assert torch.equal(loaded(x), model(x))


def test_what_cannot_be_packed():
    with pytest.raises(InputError, match=r"up: packed layers do not compute in float64; call model.float"):
        convert(prepare(Toy().double()))
    with pytest.raises(InputError, match="up: the weight is on the meta device"):
        convert(prepare(Toy().to("meta")))


def test_hooks_go_on_watching():
    model, seen = Toy(), []
    handles = [
        model.up.register_forward_hook(lambda *_: seen.append("after")),
        model.up.register_forward_pre_hook(lambda *_, **__: seen.append("before"), with_kwargs=True),
        model.up.register_full_backward_hook(lambda *_: seen.append("back")),
    ]
    loss(prepare(model), IDS).backward()
    assert seen == ["before", "after", "back"]
    convert(model)(IDS)
    assert seen[3:] == ["before", "after"]
    for handle in handles:
        handle.remove()
    model(IDS)
    assert len(seen) == 5


def test_weights_that_hooks_compute_are_refused():
    pruned = Toy()
    prune.l1_unstructured(pruned.down, "weight", amount=0.5)
    with pytest.raises(InputError, match="down: its weight is no parameter of its own but computed"):
        prepare(pruned)
    prune.remove(pruned.down, "weight")
    prune.l1_unstructured(prepare(pruned).down, "weight", amount=0.5)
    with pytest.raises(InputError, match="down: its weight is no parameter of its own but computed"):
        convert(pruned)
    normed = prepare(Toy()).eval()
    nn.utils.parametrizations.weight_norm(normed.down)
    with torch.no_grad():
        before = normed(IDS)
    torch.testing.assert_close(convert(normed)(IDS), before, rtol=0, atol=1e-5)


def test_adapters_are_not_rounded_unasked():
    model = with_part(nn.ModuleDict({"lora_A": nn.Linear(64, 4)}))
    with pytest.raises(InputError, match=r"part.lora_A belongs to an adapter of peft, .*'lora_' in skip"):
        prepare(model)
    assert kinds(prepare(model, QuestConfig(skip=("lora_",))))["part.lora_A"] == "Linear"


@pytest.mark.parametrize(
    ("broken", "options", "text"),
    [
        (lambda model, ids: 1.5, {}, "the loss must be one number with a gradient, got 1.5"),
        (lambda model, ids: model(ids), {}, "got a tensor of shape"),
        (lambda model, ids: loss(model, ids).detach(), {}, "one number with a gradient"),
        (lambda model, ids: loss(model, ids) * float("nan"), {}, "the loss is nan"),
        (loss, {"weights": "yes"}, "weights is 'yes'"),
    ],
)
def test_gradient_alignment_refuses(broken, options, text):
    with pytest.raises(InputError, match=text):
        gradient_alignment(prepare(Toy()), IDS, broken, **options)
    with pytest.raises(InputError, match=r"must be an nn.Module, not str"):
        gradient_alignment("model", IDS, broken)
