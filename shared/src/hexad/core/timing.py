"""Time as a ratio to a baseline, measured in one run."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Interleaved timings of several functions.

    Attributes:
        seconds: for each function, the time of each round, in the order of the rounds.
    """

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Median seconds of one function."""
        return statistics.median(self.seconds[name])

    def speedup(self, name: str, baseline: str) -> float:
        """How many times faster `name` is than `baseline`: the median over rounds of their ratio.

        The ratio is taken within a round, so a machine that slows down for a while slows both.
        """
        pairs = zip(self.seconds[baseline], self.seconds[name], strict=True)
        return statistics.median(slow / fast for slow, fast in pairs)


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    warmup: int = 1,
    synchronize: Callable[[], object] | None = None,
) -> Timing:
    """Time the functions in turn, `rounds` times each, after `warmup` untimed turns.

    Args:
        functions: by name; each is called without arguments.
        rounds: timed turns; every turn calls each function once.
        warmup: turns that are not timed (compilation, caches, thread pools).
        synchronize: called after each function, e.g. `torch.cuda.synchronize`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + rounds):
        # Another one begins each turn, so that none always follows the same one's caches.
        order = [*functions][turn % len(functions) :] + [*functions][: turn % len(functions)]
        for name in order:
            function = functions[name]
            start = time.perf_counter()
            function()
            if synchronize is not None:
                synchronize()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return Timing(seconds)
