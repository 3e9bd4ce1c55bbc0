"""What all three strategies can be told about how rounds run, beside the method's own parameters."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_flag, check_path, check_range
from hexad.federated.fedswa.schedule import RoundSchedule

BadReplies = Literal["raise", "leave out"]


class RoundKeywords(TypedDict, total=False):
    """The fields of `RoundOptions` as keywords of a strategy."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    seed: int | None
    schedule: RoundSchedule
    weight_decay: float
    clip_norm: float | None
    weighted: bool
    parameters: Collection[str] | None
    bad_replies: BadReplies
    max_failed_rounds: int
    checkpoints: Path | str | None
    checkpoint_every: int
    train_metrics_aggr_fn: Callable[..., Any] | None
    evaluate_metrics_aggr_fn: Callable[..., Any] | None


@dataclass(frozen=True)
class RoundOptions:
    """How rounds run.

    Args:
        fraction_train: share of the nodes that train in a round, as in Flower's FedAvg.
        fraction_evaluate: share of the nodes that evaluate.
        min_train_nodes: fewest nodes that train.
        min_evaluate_nodes: fewest nodes that evaluate.
        min_available_nodes: nodes to wait for before the first round.
        seed: of the choice of nodes, drawn anew from seed and round; None draws as Flower does.
        schedule: of the rate over rounds.
        weight_decay: sent to the clients; 1e-3 in the paper.
        clip_norm: sent to the clients; 10 in the authors' code, None clips nothing.
        weighted: weigh clients by their number of examples; the paper weighs all alike. Not for `Scaffold`.
        parameters: names of the trainable parameters, which are extrapolated and have control variates; None
            takes all real arrays but the buffers of batch norms.
        bad_replies: what becomes of a reply that cannot be averaged (not finite, wrong names): an
            `InputError`, or it is left out with a warning. Errors and late replies are always left out.
        max_failed_rounds: so many rounds on end in which clients answered with errors and bad replies alone
            end the run, as do all rounds of a shorter one. Such a round is no finished one: a resumed run
            tries it again. Rounds in which nobody answers go on for ever, each with a warning.
        checkpoints: a folder; the run writes its state there and goes on from it.
        checkpoint_every: rounds between checkpoints.
        train_metrics_aggr_fn: as in Flower's FedAvg.
        evaluate_metrics_aggr_fn: as in Flower's FedAvg.

    Raises:
        InputError: a value is out of range.
    """

    fraction_train: float = 1.0
    fraction_evaluate: float = 1.0
    min_train_nodes: int = 2
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    seed: int | None = None
    schedule: RoundSchedule = field(default_factory=RoundSchedule)
    weight_decay: float = 1e-3
    clip_norm: float | None = 10.0
    weighted: bool = False
    parameters: Collection[str] | None = None
    bad_replies: BadReplies = "raise"
    max_failed_rounds: int = 3
    checkpoints: Path | str | None = None
    checkpoint_every: int = 1
    train_metrics_aggr_fn: Callable[..., Any] | None = None
    evaluate_metrics_aggr_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_range("fraction_train", self.fraction_train, 0, 1)
        check_range("fraction_evaluate", self.fraction_evaluate, 0, 1)
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            check_count(name, getattr(self, name))
        check_count("checkpoint_every", self.checkpoint_every)
        check_count("max_failed_rounds", self.max_failed_rounds)
        if self.seed is not None:
            check_count("seed", self.seed, 0)
        if not isinstance(self.schedule, RoundSchedule):
            raise InputError(f"schedule is {self.schedule!r}; pass a RoundSchedule")
        check_range("weight_decay", self.weight_decay, 0)
        if self.clip_norm is not None:
            check_range("clip_norm", self.clip_norm, 0, low_open=True)
        check_flag("weighted", self.weighted)
        if isinstance(self.parameters, str):
            raise InputError(f"parameters is the string {self.parameters!r}; pass a list of names")
        if self.parameters is not None:
            object.__setattr__(self, "parameters", list(self.parameters))  # a generator would serve once
        check_choice("bad_replies", self.bad_replies, get_args(BadReplies))
        if self.checkpoints is not None:
            check_path(self.checkpoints, "checkpoints")

    def described(self) -> dict[str, Any]:
        """What a run that goes on must not change, as JSON values."""
        return {
            "seed": self.seed,
            "fraction_train": self.fraction_train,
            "course": self.schedule.course,
            "decay": self.schedule.decay,
            "weight_decay": self.weight_decay,
            "clip_norm": self.clip_norm,
            "weighted": self.weighted,
        }
