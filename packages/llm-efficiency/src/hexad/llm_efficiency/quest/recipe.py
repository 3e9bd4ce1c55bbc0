"""The training recipe of the paper (its appendix and code) and a byte-level Llama of any size.

RMSNorm, rotary positions, SwiGLU, no tied head, weights from N(0, 0.02) with the projections into the
residual stream divided by sqrt(2 L); AdamW with betas 0.9 and 0.95, weight decay 0.1 on linear weights alone,
the gradient clipped to a norm of 1, a cosine with a tenth of warm-up from lr / 100 down to lr / 10.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_count, check_range

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

CLIP_NORM = 1.0
WEIGHT_DECAY = 0.1
BYTES = 256


def byte_llama(hidden: int = 128, layers: int = 3, heads: int = 4, context: int = 128) -> "LlamaForCausalLM":
    """A Llama over bytes whose MLPs are 8/3 as wide as it is, rounded up to a multiple of 128.

    Weights come from torch's global generator.

    Raises:
        InputError: sizes that make no model.
        MissingExtraError: transformers is not installed.
    """
    for name, value in (("hidden", hidden), ("layers", layers), ("heads", heads), ("context", context)):
        check_count(name, value)
    if hidden % (2 * heads):
        raise InputError(f"hidden is {hidden}; it must be a multiple of twice the {heads} heads")
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"a language model needs {error.name!r}, which is not installed; "
            'run: pip install "hexad-llm-efficiency[transformers]"'
        ) from error
    config = LlamaConfig(
        vocab_size=BYTES,
        hidden_size=hidden,
        intermediate_size=-(-8 * hidden // (3 * 128)) * 128,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight /= math.sqrt(2 * layers)
    return model


def make_optimizer(model: nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW of the recipe; decay pulls masked weights back into the region of trust."""
    check_range("the learning rate", rate, 0, low_open=True)
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.95))


def make_scheduler(
    optimizer: torch.optim.Optimizer, rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """A cosine from rate / 100 up over a tenth of the steps, and down to rate / 10."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        rate,
        total_steps=max(steps, 2) + 1,
        pct_start=0.1,
        div_factor=100,
        final_div_factor=0.1,
        cycle_momentum=False,
    )


def next_token_loss(model: nn.Module, windows: Int[Tensor, "batch length+1"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of each window's next tokens, in nats."""
    logits = model(input_ids=windows[:, :-1]).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: nn.Module, windows: Int[Tensor, "n length+1"], batch: int = 16) -> float:
    """Mean `next_token_loss` over windows, in evaluation mode; the model's mode is put back."""
    training = model.training
    model.eval()
    try:
        total = sum(float(next_token_loss(model, part)) * len(part) for part in windows.split(batch))
    finally:
        model.train(training)
    return total / len(windows)
