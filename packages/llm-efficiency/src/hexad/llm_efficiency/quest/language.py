"""Language models on disk and the text they read: by bytes, or by the tokenizer in a model's folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_folder
from hexad.llm_efficiency.quest.recipe import BYTES, evaluate
from hexad.llm_efficiency.quest.texts import Windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class Reader:
    """Turns text into token numbers.

    Attributes:
        tokenizer: of transformers, or None to read bytes.
    """

    tokenizer: Any = None

    def read(self, text: bytes) -> np.ndarray:
        """The tokens of a text; what is no UTF-8 is replaced where a tokenizer reads."""
        if self.tokenizer is None:
            return np.frombuffer(text, np.uint8)
        ids = self.tokenizer(text.decode("utf-8", errors="replace"), add_special_tokens=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64)


def check_model_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder if it holds a transformers model.

    Raises:
        InputError: no such folder, or one without config.json.
    """
    path = check_folder(folder, "model folder")
    if not (path / "config.json").is_file():
        hint = f"; did you mean {path / 'model'}?" if (path / "model" / "config.json").is_file() else ""
        raise InputError(f"{path} holds no config.json, so no transformers model{hint}")
    return path


def load_model(
    folder: str | os.PathLike[str], dtype: torch.dtype | Literal["auto"] = "auto"
) -> "PreTrainedModel":
    """A causal language model in a local folder: plain, trained with QuEST, or packed.

    Args:
        folder: as `save_pretrained` writes it.
        dtype: of its weights; "auto" leaves it to the folder.

    Raises:
        InputError: no such model, or one that cannot be read.
        MissingExtraError: transformers is not installed.
    """
    path = check_model_folder(folder)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import hexad.llm_efficiency.quest.transformers  # noqa: F401 - registers the method

    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the model in {path} cannot be loaded ({str(error).splitlines()[0]})") from None


def load_reader(folder: str | os.PathLike[str], vocabulary: int) -> Reader:
    """The tokenizer in a model's folder, or bytes where there is none and the model has 256 tokens.

    Raises:
        InputError: a model of another vocabulary without a tokenizer.
        MissingExtraError: transformers is not installed.
    """
    path = Path(folder)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        if vocabulary == BYTES:
            return Reader()
        raise InputError(
            f"{path} holds no tokenizer, and its model has {vocabulary} tokens, not {BYTES} (bytes)"
        )
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"a tokenizer needs {error.name!r}, which is not installed; "
            'run: pip install "hexad-llm-efficiency[transformers]"'
        ) from error
    return Reader(AutoTokenizer.from_pretrained(path, local_files_only=True))


def save_model(model: "PreTrainedModel", reader: Reader, folder: Path) -> None:
    """Write a model and its tokenizer, if it has one, as transformers does; without its own progress bar."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)
    if reader.tokenizer is not None:
        reader.tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    Attributes:
        loss: nats a token.
        nats_per_byte: nats a byte of the text, which models with other tokenizers share.
        windows: how many were read.
    """

    loss: float
    nats_per_byte: float
    windows: int


def score(model: nn.Module, windows: Windows, bytes_per_token: float, count: int) -> Score:
    """The mean over at most `count` windows at even distances."""
    device = next(iter(model.state_dict().values())).device
    chosen = windows.spread(count).to(device)
    loss = evaluate(model, chosen)
    return Score(loss, loss / bytes_per_token, len(chosen))


def nbytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers that a file of the model holds."""
    tensors = {tensor.data_ptr(): tensor for tensor in model.state_dict().values() if tensor.numel()}
    return sum(tensor.nbytes for tensor in tensors.values())


def check_context(model: "PreTrainedModel", context: int) -> None:
    """Raise `InputError` where windows are longer than the model's positions."""
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and context > most:
        raise InputError(f"--context is {context}; this model has {most} positions")


def check_vocabulary(tokens: np.ndarray, vocabulary: int) -> None:
    """Raise `InputError` where a tokenizer gives tokens that the model does not have."""
    if len(tokens) and int(tokens.max()) >= vocabulary:
        raise InputError(
            f"the tokenizer gives token {int(tokens.max())}, and the model has {vocabulary}; they do not "
            "belong together"
        )
