"""What the commands show on a terminal."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hexad.vision_robustness.laion_c.runs import ApplySummary


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_applied(console: Console, summary: "ApplySummary") -> None:
    """Say what `apply_folder` did."""
    kept = f" ({summary.kept} were there)" if summary.kept else ""
    if summary.removed:
        console.print(f"outdated images removed: {summary.removed}")
    console.print(
        f"{_count(summary.written, 'image')} written{kept} from {_count(summary.images, 'source')} "
        f"to {summary.folder}",
        soft_wrap=True,
        markup=False,
    )
    if summary.tiles is not None:
        console.print(
            f"tiles: {summary.tiles['count']} {summary.tiles['from']}", soft_wrap=True, markup=False
        )
    if summary.alpha:
        console.print(f"alpha of {_count(summary.alpha, 'image')} was composited on white")


def print_accuracy(console: Console, summary: dict[str, Any]) -> None:
    """Print the table of accuracies that `Evaluation.summary` gives."""
    accuracy = {(cell["distortion"], cell["level"]): cell["accuracy"] for cell in summary["cells"]}
    levels = sorted({level for _, level in accuracy if level > 0})
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=None)
    table.add_column("superclass accuracy")
    for heading in (*map(str, levels), "mean"):
        table.add_column(heading, justify="right")

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    for name, mean in summary["by_distortion"].items():
        row = [shown(accuracy.get((name, level))) for level in levels]
        table.add_row(name, *row, shown(mean))
    if levels:
        means = [shown(summary["by_level"][str(level)]) for level in levels]
        table.add_row("[bold]mean[/]", *means, f"[bold]{shown(summary['mean'])}[/]")
    if summary["clean"] is not None:
        table.add_row("clean", *[""] * len(levels), shown(summary["clean"]))
    console.print(table)
    if summary["missing"]:
        missing = summary["missing"]
        console.print(
            f"{len(missing)} of the benchmark's 30 cells are missing, so this mean is not the leaderboard's: "
            f"{', '.join(missing[:6])}{' ...' if len(missing) > 6 else ''}"
        )
