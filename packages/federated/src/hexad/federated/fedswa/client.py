"""The client of a Flower app: the optimizer that a message asks for, the reply, or a whole client app."""

import hexad.federated.flower  # noqa: F401 - says what to install where Flower is missing

# isort: split
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.federated.fedswa.local import LocalResult, Loss, cross_entropy, evaluate_model, local_train
from hexad.federated.fedswa.mods import CORRECTION, ControlVariates
from hexad.federated.fedswa.optimizer import CyclicSGD, LocalConfig
from hexad.federated.fedswa.replies import ARRAYS, CONFIG, whole


def local_config(message: Message, *, steps: int | None = None, sam_radius: float = 0.0) -> LocalConfig:
    """The round as the server wants it: rate, cycle, decay, clipping.

    Args:
        message: of `FedSWA`, `FedMoSWA` or `Scaffold`, or of another strategy whose config has "lr".
        steps: K where the server leaves it to the clients.
        sam_radius: see `LocalConfig`.

    Raises:
        InputError: neither says how many steps, or there is no rate.
    """
    config = message.content.config_records[CONFIG]
    steps = whole(config["local-steps"]) if "local-steps" in config else steps
    if steps is None:
        raise InputError("how many local steps? pass steps, or local_steps to the strategy")
    if "lr" not in config:
        raise InputError("the message's config has no 'lr'; use FedSWA, FedMoSWA or Scaffold on the server")
    told: dict[str, Any] = {"rho": 1.0, "weight-decay": 0.0, "clip-norm": 0.0, **config}
    return LocalConfig(
        lr=told["lr"],
        local_steps=steps,
        rho=told["rho"],
        weight_decay=told["weight-decay"],
        clip_norm=told["clip-norm"] or None,  # a ConfigRecord holds no None
        sam_radius=sam_radius,
    )


def correction_of(message: Message) -> dict[str, Float[Tensor, "..."]] | None:
    """m - c_i as `ControlVariates` put it into the message, or None."""
    if CORRECTION not in message.content.array_records:
        return None
    return dict(message.content.array_records[CORRECTION].to_torch_state_dict())


def cyclic_sgd(model: nn.Module, message: Message, *, steps: int | None = None) -> CyclicSGD:
    """The optimizer of this round, for a training loop of your own; make a new one in every round.

    Args:
        model: with the weights of the message.
        message: of the train function.
        steps: K, how many steps the loop takes: batches times local epochs.

    Raises:
        InputError: see `local_config`; or the correction does not fit the model.
    """
    optimizer = CyclicSGD(model.named_parameters(remove_duplicate=False), local_config(message, steps=steps))
    optimizer.set_correction(correction_of(message))
    return optimizer


def train_reply(message: Message, model: nn.Module, result: LocalResult) -> Message:
    """The reply of a train function: the model, "num-examples", "train-loss" and "lr-sum".

    Raises:
        InputError: a model in bfloat16, which Flower cannot send.
    """
    metrics = MetricRecord()
    metrics["num-examples"] = result.examples
    metrics["train-loss"] = result.loss
    metrics["lr-sum"] = result.lr_sum
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    unknown = [name for name, tensor in state.items() if tensor.dtype == torch.bfloat16]
    if unknown:
        raise InputError(
            f"Flower's records hold no bfloat16, as {unknown[0]!r} is; keep the model in float32 and train "
            "under torch.autocast"
        )
    content = RecordDict({ARRAYS: ArrayRecord(state), "metrics": metrics})
    return Message(content, reply_to=message)


def make_client_app(
    make_model: Callable[[], nn.Module],
    load_batches: Callable[[Context, int], Iterable[Any]],
    *,
    load_test_batches: Callable[[Context, int], Iterable[Any]] | None = None,
    loss: Loss = cross_entropy,
    steps: int | None = None,
    folder: str | Path | None = None,
    sam_radius: float = 0.0,
    device: str | torch.device = "cpu",
) -> ClientApp:
    """A whole client app for any of the strategies here.

    Args:
        make_model: a fresh model; its weights are overwritten.
        load_batches: `(context, round)` to the client's batches of that round, on the device.
        load_test_batches: the same, of batches to evaluate the global model on: "num-examples" and
            "eval-loss", and "accuracy" with the loss that stands here. None leaves evaluations unanswered.
        loss: `(model, batch) -> scalar`.
        steps: K where the server leaves it to the clients.
        folder: of `ControlVariates`.
        sam_radius: see `LocalConfig`.
        device: where to train.
    """
    app = ClientApp(mods=[ControlVariates(folder)])

    def sent_model(message: Message) -> nn.Module:
        model = make_model()
        model.load_state_dict(message.content.array_records[ARRAYS].to_torch_state_dict())
        return model.to(device)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if load_test_batches is None:
            raise InputError("this client has nothing to evaluate on; give make_client_app load_test_batches")
        batches = load_test_batches(context, whole(message.content.config_records[CONFIG]["server-round"]))
        metrics = MetricRecord(evaluate_model(sent_model(message), batches, loss))
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = sent_model(message)
        config = local_config(message, steps=steps, sam_radius=sam_radius)
        batches = load_batches(context, whole(message.content.config_records[CONFIG]["server-round"]))
        result = local_train(model, batches, config, correction_of(message), loss=loss)
        return train_reply(message, model, result)

    return app
