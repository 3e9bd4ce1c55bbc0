"""JSON and progress of the commands."""

import io
import json

from rich.console import Console

from hexad.core.terminal import print_json, progress_bar


def test_json_is_plain_lines_of_any_width(capsys):
    value = {"name": "é" * 300, "numbers": [1, 2.5, None]}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "é" * 300 in printed


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
