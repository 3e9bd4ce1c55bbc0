"""`hexad federated fedswa simulate`: strategies on clients whose digits differ, in this process."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hexad.core.files import alone_in, write_json
from hexad.core.terminal import make_table, print_json, print_table, progress_bar, warnings_as_lines

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


def simulate(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; goes on where it stopped.")
    ] = Path("fedswa-run"),
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="fedavg, fedsam, fedswa, fedmoswa or scaffold; again for more, on the same clients.",
            show_default="fedmoswa",
        ),
    ] = None,
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 100,
    fraction: Annotated[float, typer.Option(help="Share of them that trains in a round.")] = 0.1,
    partition: Annotated[str, typer.Option(help="dirichlet, pathological or iid.")] = "dirichlet",
    alpha: Annotated[
        float, typer.Option(help="Of the Dirichlet partition; the smaller, the more clients differ.")
    ] = 0.1,
    classes_per_client: Annotated[int, typer.Option(help="Of the pathological partition.")] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds in all; raise it to go on with a run.")] = 30,
    local_steps: Annotated[int, typer.Option(help="Steps of a client in a round, K.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Digits a step.")] = 32,
    lr: Annotated[float, typer.Option("--lr", help="Rate that a round begins with.")] = 0.1,
    course: Annotated[
        str, typer.Option(help="Of the rate over rounds: constant, cosine or exponential.")
    ] = "constant",
    rho: Annotated[float, typer.Option(help="FedSWA: the rate heads for this share of itself.")] = 0.1,
    server_alpha: Annotated[
        float, typer.Option(help="FedSWA: 1 is the clients' mean, more is beyond.")
    ] = 1.5,
    gamma: Annotated[float, typer.Option(help="FedMoSWA: share of the fresh mean in m.")] = 0.2,
    weight_decay: Annotated[float, typer.Option(help="Of the clients.")] = 1e-3,
    sam_radius: Annotated[float, typer.Option(help="FedSAM: how far uphill gradients are taken.")] = 0.05,
    lost: Annotated[float, typer.Option(help="Share of replies that never arrive.")] = 0.0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between tests.")] = 5,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Run federated strategies on handwritten digits that are shared out unevenly among clients.

    The clients and the server are the Flower app that `hexad federated fedswa app` writes, in this process
    instead of on Ray. OUT gets partition.png, curves.png, report.html and report.json of the strategies
    named, and a folder for each with the model, its history and checkpoints. Ctrl-C loses at most the round
    in hand.

    Examples:

        hexad federated fedswa simulate --strategy fedmoswa --clients 100 --fraction 0.1 --alpha 0.1

        hexad federated fedswa simulate --strategy fedavg --strategy scaffold --strategy fedmoswa --lost 0.2
    """
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    from hexad.federated.fedswa.simulation import Simulation

    names = list(dict.fromkeys(strategy or ["fedmoswa"]))
    shared: dict[str, Any] = {
        "clients": clients,
        "fraction": fraction,
        "partition": partition,
        "alpha": alpha,
        "classes_per_client": classes_per_client,
        "rounds": rounds,
        "local_steps": local_steps,
        "batch_size": batch_size,
        "lr": lr,
        "course": course,
        "rho": rho,
        "server_alpha": server_alpha,
        "gamma": gamma,
        "weight_decay": weight_decay,
        "lost": lost,
        "evaluate_every": evaluate_every,
        "seed": seed,
    }
    plans = {
        name: Simulation(strategy=name, sam_radius=sam_radius if name == "fedsam" else 0.0, **shared)  # ty: ignore[invalid-argument-type]
        for name in names
    }
    with alone_in(out, "--out"), warnings_as_lines(stderr):
        report = _run_all(plans, out, quiet=as_json)
    if as_json:
        print_json(report)
        return
    table = make_table("strategy", "accuracy", "last", "loss", "MB")
    for name, run in report["runs"].items():
        shares = (f"{100 * run['accuracy']:.2f} %", f"{100 * run['last_accuracy']:.2f} %")
        table.add_row(name, *shares, f"{run['loss']:.4f}", f"{run['megabytes']:.1f}")
    print_table(stdout, table)
    stdout.print(f"{out / 'report.html'}", markup=False, soft_wrap=True)


def _run_all(plans: dict[str, Any], out: Path, quiet: bool) -> dict[str, Any]:
    """Run the strategies one after the other and write what is common to them."""
    from hexad.core.plots import save_figure
    from hexad.federated.fedswa.figures import draw_histories, draw_partition
    from hexad.federated.fedswa.report import write_report
    from hexad.federated.fedswa.simulation import label_counts

    first = next(iter(plans.values()))
    counts = label_counts(first)
    save_figure(draw_partition(counts), out / "partition.png")
    runs, histories = {}, {}
    for name, plan in plans.items():
        runs[name], histories[name] = _run_one(name, plan, out, quiet)
    save_figure(draw_histories(histories), out / "curves.png")
    settings = {key: value for key, value in asdict(first).items() if key not in ("strategy", "sam_radius")}
    report: dict[str, Any] = {"settings": settings, "runs": runs, "out": str(out)}
    write_json(out / "report.json", report)
    sizes = counts.sum(1)
    write_report(
        out,
        report,
        {
            "curves.png": "Accuracy on the server's digits over rounds and over traffic.",
            "partition.png": f"Digits of each class at each client ({sizes.min()} to {sizes.max()} digits).",
        },
    )
    return report


def _run_one(name: str, plan: Any, out: Path, quiet: bool) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Run or go on with one strategy; its figures for the report, and its history."""
    from safetensors.numpy import save_file

    from hexad.core.files import atomic_path
    from hexad.federated.fedswa.simulation import simulate as run_simulation

    place = out / name
    try:
        with progress_bar(stderr, name, quiet=quiet) as tell:
            run = run_simulation(plan, place, progress=tell, tested=None if quiet else _teller(name))
    except KeyboardInterrupt:
        stderr.print(
            f"Interrupted: {place} keeps what is done; the same command goes on from there.",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130) from None
    with atomic_path(place / "model.safetensors") as path:
        save_file(run.arrays, path)
    last = run.history[-1]
    figures = {
        "accuracy": run.accuracy(),
        "last_accuracy": last["accuracy"],
        "loss": last["loss"],
        "rounds": int(last["round"]),
        "megabytes": last["megabytes"],
        "failures": len(run.failures),
        "sam_radius": plan.sam_radius,
        "model": str(place / "model.safetensors"),
    }
    return figures, run.history


def _teller(name: str) -> Callable[[dict[str, float]], None]:
    """Prints a line for each test."""

    def tell(row: dict[str, float]) -> None:
        stderr.print(
            f"{name} round {row['round']:.0f}: accuracy {100 * row['accuracy']:.2f} %, "
            f"loss {row['loss']:.4f}, {row['megabytes']:.1f} MB",
            markup=False,
            soft_wrap=True,
        )

    return tell
