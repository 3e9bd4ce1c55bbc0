"""The command line `hexad`: what is installed, the studies, and each domain's own commands.

Starting up imports no numerical library; a domain's commands are imported when one of them is called.
"""

import errno
import functools
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import distribution, entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.core.methods import Method, domains, get_method, load_object, methods
from hexad.core.terminal import Watcher, print_json, print_method

COMMANDS_GROUP = "hexad.commands"

# Some shells export COLUMNS=0 for a width they do not know. Rich takes it at its word and prints nothing.
if os.environ.get("COLUMNS") == "0":
    del os.environ["COLUMNS"]

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


class LazyGroup(TyperGroup):
    """A group whose commands are imported only when one of them, or its help, is asked for."""

    def __init__(self, name: str, summary: str, load: Callable[[], typer.Typer]) -> None:
        super().__init__(name=name, help=summary, no_args_is_help=True)
        self._load = load
        self._group: Any = None

    def _loaded(self) -> Any:
        if self._group is None:
            self._group = typer.main.get_group(self._load())
        return self._group

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, importing them."""
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, importing it."""
        return self._loaded().get_command(ctx, cmd_name)


class DomainGroup(TyperGroup):
    """A domain: its methods that have commands."""

    def __init__(self, name: str, members: list[Method]) -> None:
        summary = distribution(f"hexad-{name}").metadata["Summary"] or name
        super().__init__(name=name, help=summary, no_args_is_help=True)
        self._members = {m.name: m for m in members if m.commands is not None}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the methods."""
        return list(self._members)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The method's own group of commands."""
        method = self._members.get(cmd_name)
        return None if method is None else LazyGroup(method.name, method.title, method.load_commands)


@contextmanager
def _interruptible() -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        stderr.print("interrupted")
        raise typer.Exit(130) from None


class RootGroup(TyperGroup):
    """Hexad's own commands, then those that installed packages bring."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands, then packages' and domains' names."""
        own = super().list_commands(ctx)
        packages = sorted(point.name for point in entry_points(group=COMMANDS_GROUP))
        with_commands = [name for name, members in domains().items() if any(m.commands for m in members)]
        return [*own, *packages, *with_commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, made when it is asked for."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=COMMANDS_GROUP, name=cmd_name):
            summary = (point.dist.metadata["Summary"] or "") if point.dist else ""
            extra = point.dist.name if point.dist else point.name
            return LazyGroup(point.name, summary, functools.partial(load_object, point.value, extra))
        members = domains().get(cmd_name)
        return DomainGroup(cmd_name, members) if members else None

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments; say so where Ctrl-C ends it, which Typer leaves out."""
        with _interruptible():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say so where Ctrl-C ends it."""
        with _interruptible():
            return super().invoke(ctx)


app = typer.Typer(
    name="hexad",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Methods of ICML 2025 as software: use them, and prove their claims again on your machine.\n\n"
    "Begin with [bold]hexad tour[/], or [bold]hexad list[/] and [bold]hexad show METHOD[/].",
)


def _show_version(value: bool) -> None:
    if value:
        stdout.print(f"hexad {version('hexad-core')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Results folder: records, figures, web pages.")]


def _describe(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "domain": method.domain,
        "title": method.title,
        "paper": method.paper,
        "claim": method.claim,
        "tags": list(method.tags),
        "has_study": method.study is not None,
        "has_commands": method.commands is not None,
    }


@app.command("list")
def list_methods(
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only methods with this tag.")] = None,
    as_json: Json = False,
) -> None:
    """List the installed methods."""
    found = list(methods().values())
    if domain is not None:
        from hexad.core.validation import check_choice

        check_choice("domain", domain, domains())
        found = [method for method in found if method.domain == domain]
    if tag is not None:
        found = [method for method in found if tag in method.tags]
    found.sort(key=lambda method: (method.domain, method.name))
    if as_json:
        print_json([_describe(method) for method in found])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("method", "domain", "what it is", "study"):
        table.add_column(heading, no_wrap=heading in ("method", "domain"))
    for method in found:
        table.add_row(
            f"[bold]{method.name}[/]", method.domain, Text(method.title), "yes" if method.study else "–"
        )
    if found:
        stdout.print(table)
    else:
        stdout.print("No method is installed that fits." if domain or tag else "No method is installed.")


@app.command("show")
def show_method(
    method: Annotated[str, typer.Argument(help="Name of a method, as in `hexad list`.")],
    as_json: Json = False,
) -> None:
    """Show what a method is, what its study measures and which claims it judges."""
    chosen = get_method(method)
    description = _describe(chosen)
    study, missing = None, ""
    if chosen.study is not None:
        try:
            study = chosen.load_study()
        except MissingExtraError as error:
            missing = str(error)
    if study is not None:
        from hexad.core.studies import describe_config

        description["study"] = {
            "question": study.question,
            "arms": [{"name": a.name, "title": a.title, "role": a.role} for a in study.arms],
            "metrics": [{"name": m.name, "title": m.title, "unit": m.unit} for m in study.metrics],
            "claims": [{"name": c.name, "statement": c.statement} for c in study.claims],
            "presets": {
                name: {"seeds": preset.seeds, "config": describe_config(preset.config)}
                for name, preset in study.presets.items()
            },
        }
    if as_json:
        print_json(description)
        return
    print_method(stdout, description)
    if missing:
        stdout.print(f"Its study is not shown: {missing}", markup=False, soft_wrap=True)


@app.command("prove")
def prove(
    names: Annotated[list[str] | None, typer.Argument(metavar="METHOD...", help="Methods to prove.")] = None,
    all_methods: Annotated[bool, typer.Option("--all", help="Every installed method with a study.")] = False,
    preset: Annotated[str, typer.Option("--preset", "-p", help="Size: tiny, quick or full.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds instead of the preset's.")] = None,
    arms: Annotated[str, typer.Option(help="Only these arms, separated by commas.")] = "",
    out: Out = Path("hexad-results"),
    engine: Annotated[str, typer.Option(help="Where trials run: local or ray.")] = "local",
    workers: Annotated[
        int, typer.Option("--workers", "-j", help="Trials at a time. More than one disturbs measured times.")
    ] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Set earlier records aside, measure anew.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 unless every judged claim holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a method beside its baselines and judge its claims.

    Finished trials are stored one by one: an interrupted run goes on where it stopped when the same command
    is given again. The report is a folder of web pages; its index is printed last.

    Examples:

        hexad prove spargeattn

        hexad prove laion-c --preset full --seeds 5

        hexad prove --all --preset quick --json > verdicts.json
    """
    if bool(names) == all_methods:
        raise InputError("name at least one method, or pass --all (not both); `hexad list` shows them")
    if all_methods:
        chosen = [method for method in methods().values() if method.study is not None]
    else:
        chosen = list({method.name: method for method in map(get_method, names or [])}.values())
    _prove(
        chosen,
        preset=preset,
        out=out,
        seeds=seeds,
        arms=[arm.strip() for arm in arms.split(",") if arm.strip()],
        engine=engine,
        workers=workers,
        fresh=fresh,
        strict=strict,
        as_json=as_json,
    )


def _prove(
    chosen: list[Method],
    *,
    preset: str,
    out: Path,
    strict: bool = False,
    as_json: bool = False,
    skip_missing: bool = False,
    **options: Any,
) -> None:
    from hexad.core.files import writable_folder, write_json
    from hexad.core.reports import collect, page, print_terminal, render_html
    from hexad.core.runner import run_study
    from hexad.core.store import check_store

    # Everything that can be wrong is looked for before anything is measured.
    studies = []
    for method in chosen:
        try:
            study = method.load_study()
        except MissingExtraError as error:
            if not skip_missing:
                raise
            stderr.print(f"{method.name} is left out: {error}", markup=False, soft_wrap=True)
            continue
        study.preset(preset)
        for arm in options.get("arms", ()):
            study.arm(arm)
        if not options.get("fresh"):
            check_store(out, study, preset)
        studies.append(study)
    if not studies:
        raise InputError("every study was left out; install what they need and try again")
    writable_folder(out, "results folder")
    pages, failed = [], False
    with Watcher(stderr) as watcher:
        for study in studies:
            watcher.begin(study)
            try:
                proof = run_study(study, preset, out=out, watch=watcher.watch, **options)
            except KeyboardInterrupt:
                watcher.interrupted()
                raise typer.Exit(130) from None
            failed |= bool(proof.failed)
            pages.append(page(proof))
            write_json(proof.folder / "page.json", pages[-1])
            watcher.end()
            if not as_json:
                with watcher.paused():
                    print_terminal(stdout, pages[-1])
    every, warnings = collect(out, fresh={(item["study"], item["preset"]): item for item in pages})
    for warning in warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)
    index = render_html(out, every)
    if as_json:
        print_json({"pages": pages, "report": str(index.resolve())})
    else:
        stdout.print()
        stdout.print(f"Report: {index.resolve()}", soft_wrap=True)
    verdicts = [item["verdict"] for content in pages for item in content["judgements"]]
    if failed:
        raise typer.Exit(1)
    if strict and any(verdict not in ("holds", "not measured") for verdict in verdicts):
        raise typer.Exit(1)


@app.command("report")
def report(
    folder: Annotated[
        Path, typer.Argument(help="A results folder of `hexad prove`, or a study's or a preset's in it.")
    ] = Path("hexad-results"),
    as_json: Json = False,
) -> None:
    """Judge the stored records again and write the report anew; nothing is measured.

    The report is always that of the whole results folder; of a study's or a preset's folder only the verdicts
    printed here are its own.
    """
    from hexad.core.files import writable_folder
    from hexad.core.reports import collect, print_terminal, render_html
    from hexad.core.store import locate
    from hexad.core.validation import check_folder

    check_folder(folder, "results folder")
    root, study, preset = locate(folder)
    writable_folder(root, "results folder")
    every, warnings = collect(root)
    for warning in warnings:
        stderr.print(f"warning: {warning}", style="yellow", soft_wrap=True, markup=False)
    index = render_html(root, every)
    pages = [item for item in every if study in ("", item["study"]) and preset in ("", item["preset"])]
    if not pages:
        raise InputError(f"nothing that is stored in {folder} can be shown; measure it again")
    if as_json:
        print_json({"pages": pages, "report": str(index.resolve())})
        return
    for content in pages:
        print_terminal(stdout, content)
    stdout.print()
    stdout.print(f"Report: {index.resolve()}", soft_wrap=True)


@app.command("tour")
def tour(out: Out = Path("hexad-results"), as_json: Json = False) -> None:
    """Run one quick study of each installed domain and write a report.

    All of it takes two to three minutes on two idle cores; what is already measured is not measured again.
    """
    chosen = [
        next(method for method in members if method.study)
        for members in domains().values()
        if any(method.study for method in members)
    ]
    if not chosen:
        raise InputError(
            "no installed method has a study; install a domain, such as: "
            'pip install "hexad-llm-efficiency[study]"'
        )
    if not as_json:
        names = ", ".join(f"{method.name} ({method.domain})" for method in chosen)
        stderr.print(f"One quick study of each installed domain: {names}")
    _prove(chosen, preset="quick", out=out, as_json=as_json, skip_missing=True)


def main() -> None:
    """Run the command line; errors that are the user's to mend are one line, exit code 2."""
    try:
        app()
    except KeyboardInterrupt:  # before Typer runs, or while it ends
        stderr.print("interrupted")
        raise SystemExit(130) from None
    except HexadError as error:
        if os.environ.get("HEXAD_DEBUG"):
            raise
        stderr.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        stderr.print(f"error: {error.strerror}", style="red", soft_wrap=True, markup=False)
        # Python would try to write the rest of standard output when it ends, and complain.
        os._exit(1)


if __name__ == "__main__":
    main()
