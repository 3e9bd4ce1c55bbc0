"""What commands show: JSON, progress, a running study, a method's description."""

import json
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # they bring numerical libraries, which a command that only helps does not need
    from hexad.core.runner import Event
    from hexad.core.studies import Study


def print_json(value: Any) -> None:
    """Write `value` to standard output as indented JSON, never wrapped to the terminal's width."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def make_table(*headings: str) -> Table:
    """A table of right-aligned columns in the house style."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table as wide as it is, past the edge of a narrow terminal: half a number is another one."""
    options = console.options
    natural = Measurement.get(console, options.update(width=100_000), table).maximum
    lines = console.render(table, options.update(width=max(natural, options.max_width)))
    console.print(Segments(lines), crop=False, end="")


@contextmanager
def progress_bar(
    console: Console, what: str, *, quiet: bool = False
) -> Generator[Callable[[float, str], None]]:
    """A bar while the block runs, gone when it ends; nothing where `console` is no terminal.

    Args:
        console: where to draw; that of standard error, so that output can be piped.
        what: stands before the bar.
        quiet: draw nothing.

    Yields:
        `tell(fraction, note)`: the share done, in [0, 1], and a few words that stand behind the bar.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0, note="")
        yield lambda fraction, note: bar.update(task, completed=fraction, note=note)


@contextmanager
def warnings_as_lines(console: Console, ignore: Sequence[type[Warning]] = ()) -> Generator[list[str]]:
    """Show each `UserWarning` of the block once, as a line, when the block ends.

    Args:
        console: where to.
        ignore: kinds that are left out.

    Yields:
        a list, which holds the messages once the block has ended.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for kind in ignore:
            warnings.simplefilter("ignore", kind)
        yield messages
    messages += dict.fromkeys(str(warning.message) for warning in caught)
    for message in messages:
        console.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)


class Watcher:
    """Shows the events of running studies: live bars on a terminal, one line a trial elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}[/]"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: TaskID | None = None
        self._study: "Study | None" = None
        self._done = self._total = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begin(self, study: "Study") -> None:
        """A study starts."""
        self._study = study
        self._bar = self._progress.add_task(study.name, total=None, note="")

    def end(self) -> None:
        """The study is done; its bar goes."""
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None

    @contextmanager
    def paused(self) -> Generator[None]:
        """Take the bars away while something else is printed."""
        self._progress.stop()
        yield
        self._progress.start()

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style))

    def watch(self, event: "Event") -> None:
        """Take one event of `hexad.core.runner.run_study`."""
        name = self._study.name if self._study else ""
        if event.kind == "plan":
            self._total, self._done = event.total, event.finished
            if event.finished:
                self._line(f"{name}: {event.finished} of {event.total} trials were measured before")
        elif event.kind == "warning":
            self._line(f"warning: {event.note}", "yellow")
        elif event.kind in ("done", "failed"):
            self._done += 1
            count = f"{name} [{self._done}/{self._total}]"
            if event.kind == "failed":
                self._line(f"{count} {event.label} failed: {event.note}", "red")
            elif not self.console.is_terminal:
                self._line(f"{count} {event.label}: {event.seconds:.1f} s")
        if self._bar is not None:
            partial = event.fraction if event.kind == "progress" else 0.0
            note = f"{event.label} {event.note}".strip() if event.kind == "progress" else ""
            # The bar's own count stays whole; a running trial shows its share in the note.
            share = f" {partial:.0%}" if partial else ""
            self._progress.update(self._bar, total=self._total, completed=self._done, note=note + share)

    def interrupted(self) -> None:
        """Say what an interrupted run keeps and how to go on."""
        self._progress.stop()
        self._line(
            f"Interrupted: {self._done} of {self._total} trials of {self._study.name if self._study else ''} "
            "are stored; the same command goes on from there."
        )


def print_method(console: Console, description: dict[str, Any]) -> None:
    """Show the description that `hexad show --json` gives, for people."""
    console.print(Text.assemble((description["title"], "bold"), f"  ({description['name']})"))
    console.print(Text(description["paper"], "dim"))
    console.print()
    console.print(Text.assemble(("Claim  ", "dim"), description["claim"]))
    if description["tags"]:
        console.print(Text.assemble(("Tags   ", "dim"), ", ".join(description["tags"])))
    study = description.get("study")
    if study is not None:
        console.print()
        console.print(Text.assemble(("Study  ", "dim"), study["question"]))
        for title, rows in (
            ("arms", [(a["name"], f"{a['title']} ({a['role']})") for a in study["arms"]]),
            (
                "metrics",
                [
                    (m["name"], m["title"] + (f" [{m['unit']}]" if m["unit"] else ""))
                    for m in study["metrics"]
                ],
            ),
            ("claims", [(c["name"], c["statement"]) for c in study["claims"]]),
            (
                "presets",
                [
                    (name, f"{p['seeds']} seed(s); " + ", ".join(f"{k}={v}" for k, v in p["config"].items()))
                    for name, p in study["presets"].items()
                ],
            ),
        ):
            table = Table(box=None, padding=(0, 2, 0, 2), show_header=False, title=None)
            table.add_column(no_wrap=True)
            table.add_column()
            for name, text in rows:
                table.add_row(Text(name, "bold"), Text(text))
            console.print(Text(title, "dim"))
            console.print(table)
        console.print(f"Measure it: hexad prove {description['name']}")
    if description["has_commands"]:
        console.print(f"Use it:     hexad {description['domain']} {description['name']} --help")
