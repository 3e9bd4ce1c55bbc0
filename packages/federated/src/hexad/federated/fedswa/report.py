"""The page that a simulation leaves: settings, numbers and pictures in one HTML file's folder."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexad.core.files import atomic_open

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem; text-align: right }
th { border-bottom: 1px solid #999; font-weight: 600 } td:first-child, th:first-child { text-align: left }
img { max-width: 100% } figcaption { color: #666 }
"""


def _table(headings: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def write_report(folder: Path, report: Mapping[str, Any], pictures: Mapping[str, str]) -> Path:
    """Write `report.html`.

    Args:
        folder: where the pictures are.
        report: as in report.json: `"runs"` by strategy, each with its `"settings"` and figures.
        pictures: file names and what they show.
    """
    runs = report["runs"]
    rows = [
        [
            name,
            f"{100 * run['accuracy']:.2f} %",
            f"{100 * run['last_accuracy']:.2f} %",
            f"{run['loss']:.4f}",
            f"{run['megabytes']:.1f}",
            f"{run['failures']}",
        ]
        for name, run in runs.items()
    ]
    headings = ["strategy", "accuracy", "last accuracy", "last loss", "MB", "failed clients"]
    settings = [[name, str(value)] for name, value in report["settings"].items()]
    shown = "".join(
        f'<figure><img src="{html.escape(file)}" alt="{html.escape(text)}"><figcaption>{html.escape(text)}'
        "</figcaption></figure>"
        for file, text in pictures.items()
    )
    path = folder / "report.html"
    with atomic_open(path) as file:
        file.write(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Federated simulation</title>"
            f"<style>{STYLE}</style><h1>Federated simulation</h1>"
            f"{_table(headings, rows)}<p>Accuracy is the mean of the last four tests of the global model on "
            "the server's examples, last accuracy that of the last. MB are the arrays sent and received as "
            f"Flower serialises them.</p>{shown}<h2>Settings</h2>{_table(['setting', 'value'], settings)}"
            "</html>\n"
        )
    return path
