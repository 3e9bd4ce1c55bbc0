"""Where the runs of a law lay, so that extrapolation can be named."""

from dataclasses import dataclass, fields

from hexad.core.errors import InputError
from hexad.core.validation import check_range


@dataclass(frozen=True)
class Ranges:
    """Where the runs lay that a law was fitted to; beyond it the law extrapolates.

    Args:
        n_active: least and most active parameters.
        tokens: least and most training tokens.
        experts: least and most experts.
        tokens_per_parameter: least and most D/N.
        n_total: least and most parameters in all, where they are known.

    Raises:
        InputError: one of them is not two positive numbers, the lesser first.
    """

    n_active: tuple[float, float]
    tokens: tuple[float, float]
    experts: tuple[float, float]
    tokens_per_parameter: tuple[float, float]
    n_total: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            name, pair = f"ranges.{item.name}", getattr(self, item.name)
            if pair is None and item.name == "n_total":
                continue
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InputError(f"{name} is {pair!r}; it must be two numbers, the least and the most")
            for value in pair:
                check_range(name, value, 0, low_open=True)
            if pair[0] > pair[1]:
                raise InputError(f"{name} is {pair!r}; the lesser number must come first")
            object.__setattr__(self, item.name, tuple(pair))

    def left(
        self, n_active: float, tokens: float | None, experts: float, n_total: float | None = None
    ) -> list[str]:
        """A line for each range that a model leaves, none where the law interpolates."""
        values = {"N": (n_active, self.n_active)}
        if tokens is not None:
            values["D"] = (tokens, self.tokens)
        values["E"] = (experts, self.experts)
        if tokens is not None:
            values["D/N"] = (tokens / n_active, self.tokens_per_parameter)
        if n_total is not None and self.n_total is not None:
            values["N_total"] = (n_total, self.n_total)
        return [
            f"{name} {value:.3g} is {'below' if value < low else 'above'} the fitted {low:.3g} to {high:.3g}"
            for name, (value, (low, high)) in values.items()
            # Counts are rounded where they are printed: 2.7B parameters are not beyond "2.7B".
            if not 0.98 * low <= value <= 1.02 * high
        ]


PAPER_RANGES = Ranges(
    n_active=(79e6, 2.7e9),
    tokens=(0.5e9, 80e9),
    experts=(1, 32),
    tokens_per_parameter=(1, 400),  # "errors grow" for D/N < 1 and for heavy overtraining
    n_total=(79e6, 5e9),
)
