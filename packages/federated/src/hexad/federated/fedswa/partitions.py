"""Data shared out among clients by the partitioners of flwr-datasets."""

import warnings
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_choice, check_count, check_range

Kind = Literal["dirichlet", "pathological", "iid"]


def partition_labels(
    labels: Int[np.ndarray, " n"],
    clients: int,
    kind: Kind = "dirichlet",
    *,
    alpha: float = 0.1,
    classes_per_client: int = 2,
    smallest: int = 1,
    seed: int = 0,
) -> list[Int[np.ndarray, " share"]]:
    """The places of each client's examples, without overlap, all examples used.

    Args:
        labels: of all examples.
        clients: how many.
        kind: `"dirichlet"` (each class is shared out by a Dirichlet draw; clients end about equally large),
            `"pathological"` (each client has few classes) or `"iid"`.
        alpha: of the Dirichlet distribution; the smaller, the more the clients differ.
        classes_per_client: for `"pathological"`.
        smallest: fewest examples of a client, for `"dirichlet"`.
        seed: of the draw.

    Raises:
        InputError: more clients than examples, or a draw that leaves a client with too little.
        MissingExtraError: flwr-datasets is not installed.
    """
    check_choice("partition", kind, get_args(Kind))
    check_count("clients", clients)
    check_range("alpha", alpha, 0, low_open=True)
    check_count("classes_per_client", classes_per_client)
    check_count("smallest", smallest, 0)
    check_count("seed", seed, 0)
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise InputError(f"labels of shape {labels.shape}; give one label an example")
    if len(labels) < clients:
        raise InputError(
            f"{clients} clients for {len(labels)} examples; have at most as many clients as examples"
        )
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner as partitioners
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"partitions need {error.name!r}, which is not installed; "
            'run: pip install "hexad-federated[flower]"'
        ) from error
    if kind == "dirichlet":
        chosen: Any = partitioners.DirichletPartitioner(
            clients, "label", float(alpha), smallest, self_balancing=True, seed=seed
        )
    elif kind == "pathological":
        chosen = partitioners.PathologicalPartitioner(clients, "label", classes_per_client, seed=seed)
    else:
        chosen = partitioners.IidPartitioner(clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    chosen.dataset = Dataset.from_dict({"label": labels[order], "place": order})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of every draw that it makes again
            return [np.asarray(chosen.load_partition(client)["place"]) for client in range(clients)]
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{len(labels)} examples cannot be shared out so ({reason})") from None
