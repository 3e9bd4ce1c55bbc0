"""Real transformers models: saved, loaded, trained by the Trainer."""

import json
import re

import pytest
import torch

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest import (
    PackedLinear,
    QuestConfig,
    QuestLinear,
    QuestQuantizationConfig,
    convert,
    gradient_alignment,
    load_packed,
    prepare,
    save_packed,
)

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402

IDS = torch.randint(1, 100, (2, 24), generator=torch.Generator().manual_seed(0))


def llama(tied=False, seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        attention_bias=True,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def logits(model, ids=IDS):
    return model(input_ids=ids).logits


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A plain, a trainable and a packed model on disk, with the logits of the latter two."""
    root = tmp_path_factory.mktemp("models")
    llama().save_pretrained(root / "plain")
    model = prepare(llama(), QuestConfig(2, 3))
    expected = {"trainable": logits(model)}
    model.save_pretrained(root / "trainable")
    expected["packed"] = logits(convert(model))
    model.save_pretrained(root / "packed")
    return root, expected


@pytest.mark.parametrize("kind", ["trainable", "packed"])
def test_a_reloaded_model_behaves_the_same_bit_for_bit(folders, kind):
    root, expected = folders
    model = AutoModelForCausalLM.from_pretrained(root / kind)
    assert torch.equal(logits(model), expected[kind])
    layers = [
        m for m in model.modules() if isinstance(m, QuestLinear if kind == "trainable" else PackedLinear)
    ]
    assert len(layers) == 14
    assert layers[0].config == QuestConfig(2, 3)
    assert type(model.lm_head) is torch.nn.Linear
    # And once more round.
    model.save_pretrained(root / f"{kind}-again")
    again = AutoModelForCausalLM.from_pretrained(root / f"{kind}-again")
    assert torch.equal(logits(again), expected[kind])


def test_the_packed_model_computes_what_the_trainable_one_did(folders):
    _, expected = folders
    torch.testing.assert_close(expected["packed"], expected["trainable"], rtol=0, atol=1e-4)


def test_what_is_written(folders):
    root, _ = folders
    config = json.loads((root / "packed" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "quest"
    assert (config["w_bits"], config["a_bits"], config["packed"]) == (2, 3, True)
    assert "model.layers.1.mlp.down_proj" in config["modules"]
    tensors = load_file(root / "packed" / "model.safetensors")
    assert tensors["model.layers.0.self_attn.q_proj.codes"].dtype == torch.uint8
    assert "model.layers.0.self_attn.q_proj.weight" not in tensors
    # The trainable model's weights are the full-precision ones that the optimiser sees.
    plain = load_file(root / "plain" / "model.safetensors")
    trainable = load_file(root / "trainable" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in plain.items()} == {
        n: t.dtype for n, t in trainable.items()
    }
    size = (root / "packed" / "model.safetensors").stat().st_size
    assert size < (root / "plain" / "model.safetensors").stat().st_size / 2


def test_prepared_on_loading(folders):
    root, _ = folders
    config = QuestQuantizationConfig(w_bits=2, a_bits=3)
    model = AutoModelForCausalLM.from_pretrained(root / "plain", quantization_config=config)
    assert torch.equal(logits(model), logits(prepare(llama(), QuestConfig(2, 3))))
    assert len(model.config.quantization_config.modules) == 14


def test_layers_that_a_filter_chose_are_chosen_again(tmp_path):
    model = prepare(llama(), QuestConfig(2, 2), filter_fn=lambda module, name: "mlp" in name)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert sum(isinstance(module, QuestLinear) for module in again.modules()) == 6
    assert torch.equal(logits(again), logits(model))


def test_a_model_inside_another_remembers_too(tmp_path):
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = llama()

    model = prepare(Wrapper(), QuestConfig(2, 2)).inner
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))


def test_tied_embeddings_and_other_dtypes(tmp_path):
    llama(tied=True).save_pretrained(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16)
    prepare(model, QuestConfig(4, 4))
    model.save_pretrained(tmp_path / "trainable")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "trainable", dtype="auto")
    assert again.dtype == torch.bfloat16
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(logits(again), logits(model))
    convert(model).save_pretrained(tmp_path / "packed")
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype="auto")
    assert packed.model.layers[0].mlp.up_proj.scale.dtype == torch.float32
    assert torch.equal(logits(packed), logits(model))


def test_a_packed_model_generates(folders):
    root, _ = folders
    model = AutoModelForCausalLM.from_pretrained(root / "packed")
    ids = model.generate(IDS, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert ids.shape == (2, 28)


def test_the_trainer_trains_it_with_no_other_change(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = prepare(llama(), QuestConfig(2, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = [{"input_ids": row, "labels": row} for row in IDS.repeat(8, 1)]
    arguments = TrainingArguments(
        tmp_path / "run",
        per_device_train_batch_size=8,
        num_train_epochs=10,
        learning_rate=3e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    loss = model(input_ids=IDS, labels=IDS).loss.item()
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    result = trainer.train()
    assert result.training_loss < loss
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(model.state_dict()[name], before[name])
    trainer.save_model(str(tmp_path / "saved"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model.eval()))
    # What is loaded can be trained on.
    Trainer(model=again, args=arguments, train_dataset=data)
    with pytest.raises(ValueError, match="quantized"):
        Trainer(model=convert(again), args=arguments, train_dataset=data)


def test_alignment_takes_a_batch_as_the_model_does():
    model = prepare(llama(), QuestConfig(4, 4))
    found = gradient_alignment(model, {"input_ids": IDS, "labels": IDS})
    assert len(found) == 14
    assert all(0.3 < value < 1 for value in found.values())


def rewritten(source, target, **changes):
    """A copy of a model's folder whose quantization_config differs."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] |= changes
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"block": 16}, r"q_proj: these codes are for another layer \(Hadamard block 64, not 16\)"),
        ({"wbits": 3}, "no setting 'wbits'; did you mean 'w_bits'"),
        ({"w_bits": 11}, "w_bits is 11"),
        ({"modules": ["model.layers.7.q_proj"]}, "names 'model.layers.7.q_proj', which is no linear layer"),
        ({"packed": "yes"}, "packed is 'yes'"),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused(folders, tmp_path, changes, text):
    folder = rewritten(folders[0] / "packed", tmp_path / "copy", **changes)
    with pytest.raises(InputError, match=text):
        AutoModelForCausalLM.from_pretrained(folder)


def test_more_that_is_refused(folders, tmp_path):
    root, _ = folders
    with pytest.raises(InputError, match="these weights are not packed"):
        AutoModelForCausalLM.from_pretrained(
            root / "plain", quantization_config=QuestQuantizationConfig(packed=True)
        )
    folder = rewritten(root / "trainable", tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"layers\.0\.mlp\.up_proj: the weight holds NaN"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(InputError, match="this is the configuration of 'quest'"):
        QuestQuantizationConfig(quant_method="awq")


def test_what_was_loaded_from_one_file_saves_as_a_folder(folders, tmp_path):
    _, expected = folders
    path = save_packed(convert(prepare(llama(), QuestConfig(2, 3))), tmp_path / "packed.safetensors")
    load_packed(llama(seed=1), path).save_pretrained(tmp_path / "folder")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "folder")), expected["packed"])


@pytest.mark.parametrize("kind", ["trainable", "packed"])
def test_the_base_model_loads_from_the_whole_and_the_whole_from_the_base(folders, tmp_path, kind):
    root, _ = folders
    whole = AutoModelForCausalLM.from_pretrained(root / kind)
    base = AutoModel.from_pretrained(root / kind)
    with torch.no_grad():
        states = whole.model(input_ids=IDS).last_hidden_state
        assert torch.equal(base(input_ids=IDS).last_hidden_state, states)
        base.save_pretrained(tmp_path / "base")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        assert torch.equal(again.model(input_ids=IDS).last_hidden_state, states)


def test_parts_that_were_prepared_by_themselves(tmp_path):
    model = prepare(llama(), QuestConfig(2, 3))
    convert(model.model.layers[0].mlp)
    with pytest.raises(InputError, match="some layers are packed and others are not"):
        model.save_pretrained(tmp_path / "mixed")
    # The base model is a transformers model of its own, and its configuration the whole model's.
    model = llama()
    prepare(model.model, QuestConfig(2, 3))
    model.save_pretrained(tmp_path / "base")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(logits(again), logits(model))


def test_modules_choose_what_is_prepared_on_loading(folders):
    root, _ = folders
    name = "model.layers.0.mlp.up_proj"

    def load(modules):
        config = QuestQuantizationConfig(w_bits=2, a_bits=2, modules=modules)
        return AutoModelForCausalLM.from_pretrained(root / "plain", quantization_config=config)

    found = [at for at, module in load([name]).named_modules() if isinstance(module, QuestLinear)]
    assert found == [name]
    with pytest.raises(InputError, match="names 'nope', which is no linear layer of this model"):
        load(["nope"])
    for wrong in ([], "abc", [3], 5):
        with pytest.raises(InputError, match="give a list of the dotted names"):
            load(wrong)


def test_t5_asks_its_layers_for_a_dtype():
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    model = prepare(transformers.T5ForConditionalGeneration(config).eval(), QuestConfig(4, 4))
    ids = torch.arange(1, 13)[None]
    with torch.no_grad():
        before = model(input_ids=ids, labels=ids).logits
        torch.testing.assert_close(
            convert(model)(input_ids=ids, labels=ids).logits, before, atol=1e-4, rtol=0
        )


def test_experts_are_not_left_out_silently():
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config)
    with pytest.raises(InputError, match=r"experts.* holds 4 matrices in one parameter .*'experts' in skip"):
        prepare(model)
    prepare(model, QuestConfig(skip=("lm_head", "embed", "experts")))


def test_a_folder_that_lacks_a_tensor(folders, tmp_path):
    for part in ("codes", "layout", "scale", "bias"):
        name = f"model.layers.1.self_attn.q_proj.{part}"
        folder = rewritten(folders[0] / "packed", tmp_path / part)
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(InputError, match=f"the folder lacks {re.escape(name)}; save the packed model"):
            AutoModelForCausalLM.from_pretrained(folder)


class Wrapped(torch.nn.Module):
    """What peft puts around a layer."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer

    def forward(self, x):
        return self.base_layer(x)


def test_adapters_around_layers(tmp_path):
    model = prepare(llama(), QuestConfig(2, 3))
    attention = model.model.layers[0].self_attn
    attention.q_proj = Wrapped(attention.q_proj)
    with pytest.raises(InputError, match="the model holds adapters of peft; save the PeftModel"):
        model.save_pretrained(tmp_path / "wrapped")
    attention.q_proj = attention.q_proj.base_layer  # unloaded
    model.save_pretrained(tmp_path / "unloaded")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "unloaded")), logits(model))
