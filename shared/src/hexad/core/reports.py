"""What a study found, as a web page, as terminal tables and as JSON, all from the same page data.

`page(proof)` gathers the data once; `render_html`, `print_terminal` and `json.dumps` only show it.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, write_json
from hexad.core.methods import methods
from hexad.core.plots import save_figure
from hexad.core.runner import Proof, load_proof
from hexad.core.store import read_manifest
from hexad.core.verdicts import INTERVALS, Judgement, summarise

MARKS = {"holds": "✓", "fails": "✗", "inconclusive": "?", "not measured": "–"}
COLOURS = {"holds": "green", "fails": "red", "inconclusive": "yellow", "not measured": "dim"}


def format_number(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits, without an exponent where it would not help."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -5 < magnitude < 7:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def _judgement(judgement: Judgement, proof: Proof) -> dict[str, Any]:
    claim, estimate = judgement.claim, judgement.estimate
    metric = proof.study.metric(claim.metric)
    relation = {None: "", "difference": "difference from ", "ratio": "ratio to "}[
        claim.relation if claim.baseline else None
    ]
    # A ratio has no unit; a difference has the metric's.
    unit = "×" if claim.baseline and claim.relation == "ratio" else metric.unit
    return {
        "name": claim.name,
        "statement": claim.statement,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "measure": f"{metric.title}, {proof.study.arm(claim.arm).title}"
        + (f", {relation}{proof.study.arm(claim.baseline).title}" if claim.baseline else ""),
        "cases": claim.cases,
        "wanted": f"{claim.direction} {claim.threshold:g}{' ' + unit if unit else ''}",
        "unit": unit,
        "digits": metric.digits,
        "estimate": dataclasses.asdict(estimate) if estimate else None,
        "resample": claim.resample,
    }


def page(proof: Proof) -> dict[str, Any]:
    """All that a reader should see of a proof, as JSON values; figures are drawn into `<store>/figures/`."""
    study = proof.study
    method = methods().get(study.name)
    figures = []
    errors = {f"{arm} (seed {seed})": text for (arm, seed), text in proof.errors.items()}
    if not proof.records.is_empty():
        folder = proof.folder / "figures"
        folder.mkdir(exist_ok=True)
        for item in study.figures:
            try:
                drawn = item.draw(proof.results)
            except Exception as error:
                # A picture may want an arm that was not measured; what was measured must not be lost with it.
                errors[f"figure {item.name}"] = f"{type(error).__name__}: {error}"
                continue
            if drawn is not None:
                save_figure(drawn, folder / f"{item.name}.png")
                figures.append({"name": item.name, "title": item.title, "file": f"figures/{item.name}.png"})
    manifest = read_manifest(proof.folder) or {}
    by_case = summarise(study, proof.records, by_case=True)
    return {
        "study": study.name,
        "title": method.title if method else study.name,
        "paper": method.paper if method else "",
        "claim": method.claim if method else "",
        "question": study.question,
        "notes": study.notes,
        "preset": proof.preset,
        "config": manifest.get("config", {}),
        "seeds": proof.records["seed"].n_unique(),
        "started": manifest.get("started", ""),
        "updated": manifest.get("updated", ""),
        "environments": list(manifest.get("environments", {}).values()),
        "arms": [{"name": arm.name, "title": arm.title, "role": arm.role} for arm in study.arms],
        "metrics": [dataclasses.asdict(metric) for metric in study.metrics],
        "judgements": [_judgement(judgement, proof) for judgement in proof.judgements],
        "summary": summarise(study, proof.records),
        "cases": by_case if any(row["case"] for row in by_case) else [],
        "figures": figures,
        "errors": errors,
        "folder": str(proof.folder),
    }


def _stored_page(path: Path) -> dict[str, Any]:
    """The page that was stored when a study was measured, wherever its folder lies now."""
    return json.loads(path.read_text(encoding="utf-8")) | {"folder": str(path.parent)}


def collect(
    root: Path, fresh: Mapping[tuple[str, str], dict[str, Any]] = MappingProxyType({})
) -> tuple[list[dict[str, Any]], list[str]]:
    """The pages of all studies stored below `root`, and warnings about what could not be read.

    A study whose method is installed is judged and drawn anew from its records; of another the page that was
    stored when it was measured is shown.

    Args:
        root: a results folder.
        fresh: pages by (study, preset) that were made just now; given some, the others are shown as stored.

    Raises:
        InputError: there is no study below `root`.
    """
    pages, warnings = [], []
    for path in sorted(root.glob("*/*/manifest.json")):
        folder = path.parent
        try:
            manifest = read_manifest(folder)
        except InputError as error:
            warnings.append(str(error))
            continue
        if manifest is None or manifest["preset"] != folder.name:
            continue  # a folder that --fresh set aside
        if (manifest["study"], folder.name) in fresh:
            pages.append(fresh[manifest["study"], folder.name])
            continue
        method = methods().get(manifest["study"])
        stored = folder / "page.json"
        if fresh and stored.is_file():
            with contextlib.suppress(ValueError):
                pages.append(_stored_page(stored))
                continue
        try:
            if method is None:
                raise InputError(f"method {manifest['study']!r} is not installed")
            proof = load_proof(root, method.load_study(), folder.name)
            pages.append(page(proof))
            warnings += proof.warnings
            write_json(stored, pages[-1])
        except (InputError, ImportError) as error:
            if stored.is_file():
                try:
                    pages.append(_stored_page(stored))
                except ValueError:
                    warnings.append(f"{folder}: left out ({error}, and {stored.name} is damaged)")
                else:
                    warnings.append(f"{folder}: shown as it was measured ({error})")
            else:
                warnings.append(f"{folder}: left out ({error})")
    if not pages:
        raise InputError(
            f"no measured study below {root}"
            + (f" ({warnings[0]})" if warnings else "; run hexad prove first")
        )
    return pages, warnings


def grid(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The summary as rows of arms with a cell for each metric; the best mean of a metric is marked."""
    cells = {(row["arm"], row["metric"]): row for row in content["summary"]}
    best = {}
    for metric in content["metrics"]:
        values = [row["value"] for row in content["summary"] if row["metric"] == metric["name"]]
        if metric["better"] and len(values) > 1:
            best[metric["name"]] = max(values) if metric["better"] == "higher" else min(values)
    rows = []
    for arm in content["arms"]:
        row = []
        for metric in content["metrics"]:
            cell = cells.get((arm["name"], metric["name"]))
            digits = metric["digits"]
            text = format_number(cell["value"], digits) if cell else "–"
            span = ""
            if cell and cell["low"] is not None:
                span = f"{format_number(cell['low'], digits)} … {format_number(cell['high'], digits)}"
            row.append(
                {"text": text, "span": span, "best": bool(cell) and best.get(metric["name"]) == cell["value"]}
            )
        if any(cell["text"] != "–" for cell in row):
            rows.append({"arm": arm, "cells": row})
    return rows


def estimate_text(judgement: dict[str, Any]) -> str:
    """`0.93 [0.91, 0.95], n = 3`, or the reason why nothing was measured."""
    estimate = judgement["estimate"]
    if estimate is None:
        return judgement["reason"]
    digits, unit = judgement["digits"], judgement["unit"]
    text = format_number(estimate["value"], digits)
    if estimate["low"] is not None:
        text += f" [{format_number(estimate['low'], digits)}, {format_number(estimate['high'], digits)}]"
    more = f"; {judgement['reason']}" if judgement["reason"] else ""
    return f"{text}{' ' + unit if unit else ''} (n = {estimate['n']}{more})"


def _templates() -> Any:
    import jinja2
    import markupsafe

    loader = jinja2.PackageLoader("hexad.core", "templates")
    templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)

    def prose(text: str) -> markupsafe.Markup:
        """Text of ours, with `code` between backticks."""
        escaped = str(markupsafe.escape(text))
        return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))

    templates.filters.update(number=format_number, estimate=estimate_text, prose=prose)
    css = templates.get_template("style.css").render()
    shared: dict[str, Any] = {
        "grid": grid,
        "marks": MARKS,
        "css": markupsafe.Markup(css),
        "intervals": INTERVALS,
    }
    templates.globals.update(shared)
    return templates


def render_html(root: Path, pages: list[dict[str, Any]]) -> Path:
    """Write `<root>/index.html` and one `index.html` beside each study's records; return the index."""
    templates = _templates()
    for content in pages:
        folder = Path(content["folder"])
        up = os.path.relpath(root, folder)
        with atomic_open(folder / "index.html") as file:
            file.write(templates.get_template("study.html").render(page=content, up=up))
    index = root / "index.html"
    entries = [
        {**content, "link": Path(os.path.relpath(Path(content["folder"]) / "index.html", root)).as_posix()}
        for content in pages
    ]
    with atomic_open(index) as file:
        file.write(templates.get_template("index.html").render(pages=entries))
    return index


_ARM_WIDTH = 30


def _that_fit(content: dict[str, Any], places: list[int], width: int) -> list[list[int]]:
    """The metrics in groups that fit beside the arms' names on so many columns."""
    groups: list[list[int]] = [[]]
    left = width - _ARM_WIDTH - 2
    for place in places:
        metric = content["metrics"][place]
        # Titles wrap at spaces, numbers never: "-0.00123" is as long as three digits get.
        need = 2 + max(8, len(metric["unit"]), *(len(word) for word in metric["title"].split()))
        if need > left and groups[-1]:
            groups.append([])
            left = width - _ARM_WIDTH - 2
        groups[-1].append(place)
        left -= need
    return groups


def print_terminal(console: Console, content: dict[str, Any]) -> None:
    """Show a page as terminal tables: the claims with their verdicts, then arms by metrics."""
    console.print()
    console.print(
        Text.assemble((content["title"], "bold"), f"  {content['study']}, preset {content['preset']}")
    )
    console.print(Text(content["question"], "italic"))
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=True, header_style="dim")
    table.add_column("")
    table.add_column("claim", ratio=5)
    table.add_column("wanted", ratio=2)
    table.add_column("measured", ratio=4)
    for judgement in content["judgements"]:
        verdict = judgement["verdict"]
        table.add_row(
            Text(f"{MARKS[verdict]} {verdict}", COLOURS[verdict]),
            Text(judgement["statement"]),
            Text(judgement["wanted"]),
            Text(estimate_text(judgement)),
        )
    console.print(table)
    if any(row["estimate"] and row["estimate"]["low"] is not None for row in content["judgements"]):
        console.print(Text(INTERVALS, "dim"))
    if content["summary"]:
        used = [
            place
            for place, metric in enumerate(content["metrics"])
            if any(row["metric"] == metric["name"] for row in content["summary"])
        ]
        rows = grid(content)
        for places in _that_fit(content, used, console.width):
            summary = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            summary.add_column("arm", max_width=_ARM_WIDTH)
            for place in places:
                metric = content["metrics"][place]
                summary.add_column(Text(f"{metric['title']}\n{metric['unit']}"), justify="right")
            for row in rows:
                shown = [row["cells"][place] for place in places]
                if any(cell["text"] != "–" for cell in shown):
                    cells = (Text(cell["text"], "bold" if cell["best"] else "") for cell in shown)
                    summary.add_row(Text(row["arm"]["title"]), *cells)
            console.print()
            console.print(summary)
    for trial, error in content["errors"].items():
        console.print(Text(f"failed: {trial}: {error}", "red"))


def markdown(content: dict[str, Any]) -> str:
    """The claims and the summary as Markdown tables with date, machine and seeds, for the documentation."""
    lines = ["| claim | wanted | measured | verdict |", "| --- | --- | --- | --- |"]
    for judgement in content["judgements"]:
        cells = (judgement["statement"], judgement["wanted"], estimate_text(judgement), judgement["verdict"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    rows = grid(content)
    used = [
        i for i, _ in enumerate(content["metrics"]) if any(row["cells"][i]["text"] != "–" for row in rows)
    ]
    heads = [
        f"{metric['title']}{' (' + metric['unit'] + ')' if metric['unit'] else ''}"
        for metric in (content["metrics"][i] for i in used)
    ]
    lines += ["", "| arm | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for row in rows:
        cells = [
            (f"**{cell['text']}**" if cell["best"] else cell["text"])
            + (f"<br><small>{cell['span']}</small>" if cell["span"] else "")
            for cell in (row["cells"][i] for i in used)
        ]
        lines.append(f"| {row['arm']['title']} | " + " | ".join(cells) + " |")
    lines += ["", provenance(content)]
    return "\n".join(lines) + "\n"


def provenance(content: dict[str, Any]) -> str:
    """One sentence: when, where and how often it was measured."""
    machines = _unique(
        f"{e['processor']}, {e['cores']} cores, Python {e['python']}" for e in content["environments"]
    )
    commits = _unique(e["commit"] for e in content["environments"] if e["commit"])
    return (
        f"Measured {content['updated'][:10]} with the preset `{content['preset']}`, {content['seeds']} "
        f"seed{'s' if content['seeds'] != 1 else ''}, on {'; '.join(machines)}"
        + (f"; commit {', '.join(commits)}" if commits else "")
        + "."
    )


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
