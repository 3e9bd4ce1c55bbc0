"""The client: trains its model for one round."""

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hexad.federated.fedswa import ControlVariates, correction_of, local_config, local_train, train_reply

from .task import client_batches, make_model

app = ClientApp(mods=[ControlVariates()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take the server's model, train it, send it back."""
    config: Any = context.run_config
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    number = message.content.config_records["config"]["server-round"]
    result = local_train(
        model,
        client_batches(context, number),  # ty: ignore[invalid-argument-type] - rounds are whole numbers
        local_config(message, sam_radius=config["sam-radius"]),
        correction_of(message),
    )
    return train_reply(message, model, result)
