"""The server: averages the clients' models by the strategy that the configuration names."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from hexad.federated.fedswa import FedMoSWA, FedSWA, RoundSchedule, Scaffold

from .task import make_model, score

app = ServerApp()

Watch = Callable[[int, ArrayRecord, MetricRecord | None], None]


def make_strategy(config: Mapping[str, Any]) -> FedSWA:
    """The strategy of a run's configuration."""
    name = config["strategy"]
    options: dict[str, Any] = {
        "lr": config["lr"],
        "local_steps": config["local-steps"],
        "weight_decay": config["weight-decay"],
        "schedule": RoundSchedule(config["course"]),
        "fraction_train": config["fraction-train"],
        "fraction_evaluate": 0.0,
        "seed": config["seed"],
        "checkpoints": config["checkpoints"] or None,
    }
    if name in ("fedavg", "fedsam"):
        return FedSWA(rho=1.0, server_alpha=1.0, weighted=True, **options)
    cycle = {"rho": config["rho"], "server_alpha": config["server-alpha"]}
    if name == "fedswa":
        return FedSWA(**cycle, **options)
    if name == "fedmoswa":
        return FedMoSWA(gamma=config["gamma"], **cycle, **options)
    if name == "scaffold":
        return Scaffold(**options)
    raise ValueError(f"unknown strategy {name!r}")


def run(grid: Grid, config: Mapping[str, Any], watch: Watch | None = None) -> Result:
    """Run all rounds; `watch(round, arrays, metrics)` is told of each, with metrics where it was tested."""
    every, rounds = config["evaluate-every"], config["rounds"]

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = score(arrays, config["seed"]) if number % every == 0 or number == rounds else None
        if watch is not None:
            watch(number, arrays, metrics)
        return metrics

    initial = ArrayRecord(make_model(config["seed"]).state_dict())
    return make_strategy(config).start(grid, initial, num_rounds=rounds, evaluate_fn=evaluate)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What `flwr run` starts; writes the accuracies to results.json in the folder of the configuration."""
    config: Any = context.run_config
    result = run(grid, config)
    tested = {number: dict(metrics) for number, metrics in result.evaluate_metrics_serverapp.items()}
    print(json.dumps(tested))
    if config["results"]:
        folder = Path(config["results"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(tested, indent=2))
