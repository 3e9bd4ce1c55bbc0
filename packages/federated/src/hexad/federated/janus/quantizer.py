"""Updates as whole numbers: clip, scale to [0, 2^b - 1], round at random, multiply by the weight."""

import numpy as np
from jaxtyping import Float, UInt64

from hexad.core.errors import InputError
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.errors import VerificationError


class Quantizer:
    """Encodes updates and decodes sums of them.

    A sum X of encoded vectors with total weight W decodes to the weighted mean of the clipped updates; the
    rounding is unbiased and moves each client's number by less than a step, 2 clip / (2^b - 1).
    """

    def __init__(self, config: JanusConfig) -> None:
        self.config = config
        self.step = 2 * config.clip / config.levels

    def check_update(self, update: Float[np.ndarray, " length"]) -> Float[np.ndarray, " length"]:
        """Return the update in float64.

        Raises:
            InputError: it has another shape or type than the session's, or numbers that are not finite.
        """
        if not isinstance(update, np.ndarray) or update.dtype.kind != "f":
            shown = getattr(update, "dtype", type(update).__name__)
            raise InputError(f"an update is a NumPy array of floats, not {shown}; convert it")
        if update.shape != (self.config.length,):
            raise InputError(
                f"the update has the shape {update.shape}, the session's {(self.config.length,)}"
            )
        if not np.isfinite(update).all():
            raise InputError(f"the update has {np.count_nonzero(~np.isfinite(update))} numbers not finite")
        return update.astype(np.float64)

    def check_weight(self, weight: int) -> int:
        """Return the weight.

        Raises:
            InputError: it is no whole number in [1, max_weight].
        """
        whole = isinstance(weight, (int, np.integer)) and not isinstance(weight, bool)
        if not whole or not 1 <= weight <= self.config.max_weight:
            raise InputError(
                f"weight is {weight!r}; it must be a whole number in [1, {self.config.max_weight}]"
            )
        return int(weight)

    def encode(
        self, update: Float[np.ndarray, " length"], weight: int, rng: np.random.Generator
    ) -> UInt64[np.ndarray, " dim"]:
        """The weighted, rounded update with its weight as last coordinate.

        Args:
            update: finite floats.
            weight: how often the update counts.
            rng: draws the rounding; it need not be secret.

        Raises:
            InputError: see `check_update` and `check_weight`.
        """
        values, weight = self.check_update(update), self.check_weight(weight)
        clip = self.config.clip
        scaled = (np.clip(values, -clip, clip) + clip) / self.step
        # Rounding down after adding a uniform number; the largest may come out one too high.
        rounded = np.minimum(np.floor(scaled + rng.random(len(scaled))), self.config.levels)
        encoded = np.empty(self.config.dim, np.uint64)
        encoded[:-1] = rounded
        encoded[-1] = 1
        encoded *= np.uint64(weight)
        return encoded

    def decode(self, total: UInt64[np.ndarray, " dim"]) -> tuple[Float[np.ndarray, " length"], int]:
        """The weighted mean of what was summed, and the sum of the weights.

        Raises:
            VerificationError: the weights sum to zero.
        """
        weight = int(total[-1])
        if weight == 0:
            raise VerificationError("opening", "the weights of the sum are zero; there is no mean")
        return total[:-1] * (self.step / weight) - self.config.clip, weight
