"""Tables of a benchmark, for the terminal and for Markdown alike."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Cells that are text already.

    Attributes:
        title: says what the numbers are.
        headings: of the columns; the first `labels` of them stand to the left, the others to the right.
        rows: one cell a column.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1

    def markdown(self) -> str:
        """The table under its title."""
        rules = ["---"] * self.labels + ["---:"] * (len(self.headings) - self.labels)
        lines = [self.headings, rules, *self.rows]
        return "\n".join([self.title, "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"
