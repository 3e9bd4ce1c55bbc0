"""JSON and progress of the commands."""

import io
import json
import warnings

import pytest
from rich.console import Console

from hexad.core.terminal import make_table, print_json, print_table, progress_bar, warnings_as_lines


def test_json_is_plain_lines_of_any_width(capsys):
    value = {"name": "é" * 300, "numbers": [1, 2.5, None]}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é" * 300 in printed


@pytest.mark.parametrize("width", [1, 20, 40, 200])
def test_tables_keep_their_numbers_at_any_width(width):
    rows = [("coefficient", "value", "95 % interval"), ("alpha", "-0.1889", "\\[-0.1912, -0.1866]")]
    table = make_table(*rows[0])
    table.add_row(*rows[1])
    console = Console(file=io.StringIO(), width=width)
    print_table(console, table)
    assert [line.split() for line in console.file.getvalue().splitlines()] == [
        ["coefficient", "value", "95", "%", "interval"],
        ["alpha", "-0.1889", "[-0.1912,", "-0.1866]"],
    ]


def test_warnings_are_lines_told_once():
    console = Console(file=io.StringIO(), width=200)
    with warnings_as_lines(console, ignore=(PendingDeprecationWarning,)) as told:
        for _ in range(2):
            warnings.warn("few rows [3]", UserWarning, stacklevel=1)
        warnings.warn("never mind", PendingDeprecationWarning, stacklevel=1)
    assert told == ["few rows [3]"]
    assert console.file.getvalue() == "warning: few rows [3]\n"


def test_progress_is_drawn_on_a_terminal_alone():
    for terminal, quiet, drawn in ((True, False, True), (True, True, False), (False, False, False)):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=120)
        with progress_bar(console, "tune", quiet=quiet) as tell:
            tell(0.25, "layer [3]")  # brackets are no markup
            tell(1.0, "layer [4]")
        shown = stream.getvalue()
        assert ("tune" in shown and "layer [4]" in shown) == drawn, shown
        assert drawn or not shown.strip()
