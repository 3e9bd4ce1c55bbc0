"""Build the documentation: generate the tables from data, render the site offline, check its links.

uv run python docs/build.py            writes docs/site/
uv run python docs/build.py --readme   also brings the table of methods in README.md up to date

What is measured is committed as JSON in docs/measured/, and every table of numbers is made from it:
`uv run python docs/build.py --measure RESULTS` copies it there from a results folder, or from a file that
`hexad kernels bench --json` wrote.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image

from hexad.core.files import atomic_open, write_json
from hexad.core.methods import methods
from hexad.core.reports import markdown

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
GENERATED = DOCS / "generated"
MARKS = ("<!-- methods: made by docs/build.py -->", "<!-- end of methods -->")


def method_table(link: str) -> str:
    """All 38 methods with their state, as a Markdown table; `link` is a format for a ready method's page."""
    ready = methods()
    rows = tomllib.loads((DOCS / "methods.toml").read_text())["methods"]
    listed = {name: domain for name, domain, *_ in rows}
    for method in ready.values():
        assert listed.get(method.name) == method.domain, f"{method.name} is not in docs/methods.toml"
    lines = ["| method | domain | what it is | paper | state |", "| --- | --- | --- | --- | --- |"]
    for name, domain, title, arxiv in rows:
        paper = f"[{arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else "ICML 2025"
        shown = f"[**{name}**]({link.format(name)})" if name in ready else name
        lines.append(
            f"| {shown} | {domain} | {title} | {paper} | {'ready' if name in ready else 'planned'} |"
        )
    return "\n".join(lines)


def readme_with_table() -> str:
    """The text of README.md with its table of methods made anew."""
    text = README.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    table = method_table("docs/pages/methods/{}.md")
    return f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}"


def measure(results: Path) -> None:
    """Copy what the full presets of a results folder measured, with its figures, or a benchmark."""
    if results.is_file():
        report = json.loads(results.read_text())
        for name, operation in report["operations"].items():
            page = report | {"operations": {name: operation}, "markdown": operation["markdown"]}
            write_json(DOCS / "measured" / f"kernels-{name}.json", page)
            print(f"docs/measured/kernels-{name}.json")
        return
    for path in sorted(results.glob("*/full/page.json")):
        page = json.loads(path.read_text())
        stem = f"{page['study']}-{page['preset']}"
        # The tables need no single cases; those stay with the records, which are thousands of rows.
        page |= {"folder": "", "cases": []}
        write_json(DOCS / "measured" / f"{stem}.json", page)
        figures = DOCS / "pages" / "figures" / stem
        figures.mkdir(parents=True, exist_ok=True)
        for figure in page["figures"]:
            # WebP keeps contact sheets of photographs small in the repository.
            with Image.open(path.parent / figure["file"]) as image:
                image.convert("RGB").save(figures / f"{figure['name']}.webp", quality=85)
        print(f"docs/measured/{stem}.json")


def generate() -> None:
    """Write the snippets that the pages include."""
    GENERATED.mkdir(exist_ok=True)
    with atomic_open(GENERATED / "methods.md") as file:
        file.write(method_table("methods/{}.md") + "\n")
    for path in sorted((DOCS / "measured").glob("*.json")):
        content = json.loads(path.read_text())
        if "judgements" not in content:  # a benchmark of the kernels brings its own Markdown
            text = content["markdown"]
        else:
            text = markdown(content)
            for figure in content["figures"]:
                text += f"\n![{figure['title']}](../figures/{path.stem}/{figure['name']}.webp)\n"
        with atomic_open(GENERATED / f"{path.stem}.md") as file:
            file.write(text)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere (outside addresses cannot be tried offline)."""
    pages: dict[Path, _Links] = {}
    for path in site.rglob("*.html"):
        pages[path] = _Links()
        pages[path].feed(path.read_text())
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith(("data:", "javascript:")):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(site)}: {link} (no such heading)")
    return broken


def main() -> int:
    """Build; the exit code is 1 where a link, a page or a docstring is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="rewrite the table of methods in README.md")
    parser.add_argument(
        "--measure", type=Path, metavar="RESULTS", help="take over a results folder, or a benchmark"
    )
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
    if options.readme:
        text = readme_with_table()
        with atomic_open(README) as file:
            file.write(text)
    generate()
    config = DOCS / "zensical.toml"
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(config)],
        cwd=DOCS,
        capture_output=True,
        text=True,
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr).strip()
    print(shown)
    # griffe warns of docstrings that name other parameters than the code has; --strict lets that pass.
    if built.returncode or re.search("^griffe: ", shown, re.MULTILINE):
        return 1
    broken = broken_links(DOCS / "site")
    for link in broken:
        print(f"broken link: {link}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
