"""`hexad llm-efficiency moe-laws`: plan a training run, and fit a law to runs of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, writable_file
from hexad.core.terminal import make_table, print_json, print_table, progress_bar
from hexad.core.validation import check_count, check_file
from hexad.llm_efficiency.moe_laws.quantities import parse_bytes, short, short_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from hexad.llm_efficiency.moe_laws.law import AnyLaw
    from hexad.llm_efficiency.moe_laws.planning import Plan

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Joint scaling laws of dense and mixture-of-experts models: `plan` says what to train under a "
    "budget, `fit` fits a law to your own runs.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

PICTURES = (".png", ".pdf", ".svg")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


def parse_experts(text: str) -> tuple[float, ...]:
    """Numbers of experts separated by commas.

    Raises:
        InputError: they are none.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--experts is {text!r}; write numbers separated by commas, such as 1,8") from None


@app.command("plan")
def plan_command(
    flops: Annotated[float, typer.Option(help="FLOPs for training and inference together, such as 1e22.")],
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for parameters and cache, such as 80GB or 8x80GB. Default: no limit."),
    ] = None,
    kv_tokens: Annotated[float, typer.Option(help="Tokens in the key-value cache.")] = 0,
    bytes_per_param: Annotated[
        float, typer.Option(help="Bytes of a parameter and of an element of the cache; 2 for bf16.")
    ] = 2,
    inference_tokens: Annotated[
        float, typer.Option(help="Tokens served over the model's life, out of the same FLOPs.")
    ] = 0,
    experts: Annotated[
        str | None, typer.Option(help="Numbers of experts to compare. Default: 1,2,4,8,16,32.")
    ] = None,
    law: Annotated[Path | None, typer.Option(help="A law that `fit` wrote. Default: the paper's.")] = None,
    vocab: Annotated[int, typer.Option(help="Tokens in the vocabulary.")] = 50_257,
    any_width: Annotated[
        bool, typer.Option("--any-width", help="Real widths instead of multiples of 64.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write the isoFLOP plot here: a .png, .pdf or .svg file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Which model to train under a budget of FLOPs, memory and inference.

    For each number of experts: the width, tokens and predicted loss of the best model that fits. The paper's
    law is of Switch models up to 2.7B active parameters on FineWeb-Edu; a row marked * extrapolates.

    Examples:

        hexad llm-efficiency moe-laws plan --flops 1e22 --memory 80GB --kv-tokens 16384

        hexad llm-efficiency moe-laws plan --flops 1e21 --inference-tokens 1e12 --experts 1,8

        hexad llm-efficiency moe-laws plan --flops 1e20 --law law.json --plot plan.pdf
    """
    budget = None if memory is None else parse_bytes(memory, "--memory")
    counts = None if experts is None else parse_experts(experts)
    if law is not None:
        check_file(law, "law")
    if plot is not None:
        _check_picture(plot, "--plot")
        writable_file(plot, "--plot")
    from hexad.core.plots import save_figure
    from hexad.llm_efficiency.moe_laws.architecture import SwitchArch
    from hexad.llm_efficiency.moe_laws.curves import learning_rate
    from hexad.llm_efficiency.moe_laws.figures import draw_plan
    from hexad.llm_efficiency.moe_laws.planning import EXPERTS, PAPER, plan
    from hexad.llm_efficiency.moe_laws.ranges import PAPER_RANGES

    chosen = PAPER if law is None else _read_law(law)
    if counts is None:
        counts = _experts_of(chosen) or EXPERTS
    arch = SwitchArch(vocab=vocab)
    found = plan(
        flops,
        **({} if budget is None else {"memory_bytes": budget}),
        kv_tokens=kv_tokens,
        bytes_per_param=bytes_per_param,
        inference_tokens=inference_tokens,
        experts=counts,
        law=chosen,
        arch=arch,
        discrete=not any_width,
    )
    best = found.best
    rate = learning_rate(arch.active_without_embedding(best.width), best.experts)
    beyond = PAPER_RANGES.left(best.n_active, None, best.experts)
    if plot is not None:
        save_figure(draw_plan(found, chosen), plot)
    if as_json:
        shown = None if plot is None else str(plot)
        more = {"learning_rate": rate, "learning_rate_warnings": beyond, "plot": shown}
        print_json(found.to_dict() | more)
        return
    print_table(stdout, _table(found))
    for count, reason in found.skipped.items():
        _say(f"E = {count} does not fit: {reason}")
    _say(found.recommendation())
    _say(f"Peak learning rate by the paper's law: {rate:.2g}" + (" (extrapolated)" if beyond else ""))
    if plot is not None:
        _say(f"Plot: {plot}")
    if best.warnings:
        _warn(f"the recommended model extrapolates: {'; '.join(best.warnings)}")
    if beyond:
        _warn(f"the learning rate extrapolates from the paper's runs: {'; '.join(beyond)}")


def _say(text: str) -> None:
    stdout.print(text, soft_wrap=True, markup=False)


def _warn(text: str) -> None:
    stderr.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)


def _check_picture(path: Path, option: str) -> None:
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"{option} is {path}; name a .png, .pdf or .svg file")


def _read_law(path: Path) -> "AnyLaw":
    from hexad.llm_efficiency.moe_laws.law import law_from_json

    try:
        return law_from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _experts_of(law: "AnyLaw") -> tuple[float, ...]:
    """The one number of experts of a Chinchilla law; none for a joint law."""
    from hexad.llm_efficiency.moe_laws.law import ChinchillaLaw

    if not isinstance(law, ChinchillaLaw):
        return ()
    return (1.0,) if law.ranges is None else (law.ranges.experts[0],)


def _table(found: "Plan") -> "Table":
    table = make_table("E", "width", "active", "total", "tokens", "D/N", "loss", "memory", "limit", "")
    for row in found.rows:
        table.add_row(
            str(row.experts),
            f"{row.width:.0f}",
            short(row.n_active),
            short(row.n_total),
            short(row.tokens),
            f"{row.tokens_per_parameter:.3g}",
            f"{row.loss:.4f}",
            short_bytes(row.memory_bytes),
            row.limit,
            "*" if row.warnings else "",
            style="bold" if row == found.best else None,
        )
    return table


@app.command("fit")
def fit_command(
    runs: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet: n_active, tokens, experts, loss.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the law here, as JSON.")],
    law: Annotated[
        Literal["joint", "chinchilla", "clark"],
        typer.Option(help="chinchilla: runs of one E; clark: runs of one number of tokens."),
    ] = "joint",
    starts: Annotated[int, typer.Option(help="Starts of the fit.")] = 64,
    bootstrap: Annotated[int, typer.Option(help="Samples behind the intervals; 0 for none.")] = 200,
    holdout: Annotated[
        str, typer.Option(help="Runs kept from the fit: lowest, longest or largest, :N or :N%; none.")
    ] = "lowest:12%",
    seed: Annotated[int, typer.Option(help="Seed of starts and bootstrap.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write the residual plots here. Default: beside --out, named -residuals.png."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no plot.")] = False,
    as_json: Json = False,
) -> None:
    """Fit a scaling law to training runs, and say how well it predicts runs it was not shown.

    The file has a row a run: active parameters with embedding and unembedding, training tokens, number of
    experts (1 is dense), and the final loss in nats per token.

    Examples:

        hexad llm-efficiency moe-laws fit runs.csv -o law.json

        hexad llm-efficiency moe-laws fit dense.csv -o dense.json --law chinchilla --holdout longest:5
    """
    check_count("--starts", starts)
    check_count("--bootstrap", bootstrap, 0)
    check_count("--seed", seed, 0)
    check_file(runs, "file of runs")
    target = None if no_plot else plot or out.parent / f"{out.stem}-residuals.png"
    for path, option in ((out, "--out"), (target, "--plot")):
        if path is not None and path.resolve() == runs.resolve():
            raise InputError(f"{option} {path} is also the file of runs; choose another name")
    if target is not None:
        _check_picture(target, "--plot")
        if target.resolve() == out.resolve():
            raise InputError(f"--plot and --out are both {out}; choose another name")
    from hexad.core.plots import save_figure
    from hexad.llm_efficiency.moe_laws.figures import draw_residuals
    from hexad.llm_efficiency.moe_laws.fitting import fit
    from hexad.llm_efficiency.moe_laws.runs import read_runs

    table = read_runs(runs)
    writable_file(out, "--out")
    if target is not None:
        writable_file(target, "--plot")
    with progress_bar(stderr, "fit", quiet=as_json) as tell:
        result = fit(
            table, law, n_starts=starts, bootstrap=bootstrap, holdout=holdout, seed=seed, progress=tell
        )
    with atomic_open(out) as file:
        file.write(result.law.to_json() + "\n")
    if target is not None:
        save_figure(draw_residuals(table, result), target)
    fitted = {name: getattr(result.law, name) for name in result.law.names()}
    if as_json:
        print_json(
            {
                "law": law,
                "coefficients": fitted,
                "intervals": {name: list(pair) for name, pair in result.ci.items()},
                "rmse_train": result.rmse_train,
                "rmse_holdout": result.rmse_holdout,
                "max_error": result.max_error,
                "runs": len(table),
                "held_out": int(result.held_out.sum()),
                "starts": starts,
                "starts_at_best": result.starts,
                "warnings": list(result.warnings),
                "out": str(out),
                "plot": None if target is None else str(target),
            }
        )
        return
    rows = make_table("coefficient", "value", "95 % interval")
    for name, value in fitted.items():
        low, high = result.ci.get(name, (None, None))
        rows.add_row(name, f"{value:.4g}", "" if low is None else escape(f"[{low:.4g}, {high:.4g}]"))
    print_table(stdout, rows)
    unseen = "" if result.rmse_holdout is None else f", of the {int(result.held_out.sum())} held out "
    unseen += "" if result.rmse_holdout is None else f"{result.rmse_holdout:.4f}"
    _say(
        f"RMSE of the {int((~result.held_out).sum())} fitted runs {result.rmse_train:.4f} nats{unseen}; "
        f"largest error {result.max_error:.4f}; {result.starts} of {starts} starts reached this fit"
    )
    _say(f"Law: {out}" + ("" if target is None else f"\nResiduals: {target}"))
    for line in result.warnings:
        _warn(line)
