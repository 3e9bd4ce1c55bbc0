"""What a call of sparse attention computed and what it skipped."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionStats:
    """What one call computed. Tiles are counted over the batch and all query heads.

    Attributes:
        backend: the backend that ran.
        needed_tiles: tiles that dense attention would compute (under is_causal, those not wholly hidden).
        kept_tiles: tiles whose scores Q K^T were computed.
        skipped_pv_tiles: kept tiles that the second filter left out of P V.
    """

    backend: str
    needed_tiles: int
    kept_tiles: int
    skipped_pv_tiles: int

    @property
    def sparsity(self) -> float:
        """Share of the two matrix products that was skipped, over what dense attention needs."""
        return 1.0 - (2 * self.kept_tiles - self.skipped_pv_tiles) / (2 * self.needed_tiles)
