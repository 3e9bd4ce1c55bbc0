"""`hexad rl-graph gas train`, and what all commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar, warnings_as_lines
from hexad.core.validation import check_count

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def say(text: str) -> None:
    """Print a line as it is, whatever the terminal's width."""
    stdout.print(text, soft_wrap=True, markup=False)


STAGES_OF = {
    "tdr_steps": ("tdr",),
    "gamma": ("tdr",),
    "expectile": ("tdr",),
    "standardize": ("tdr",),
    "te_threshold": ("graph",),
    "latch": ("graph",),
    "policy_steps": ("policy",),
    "alpha": ("policy",),
} | dict.fromkeys(("hidden", "batch_size", "learning_rate", "polyak", "seed"), ("tdr", "policy"))
"""Options that not all stages heed."""


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def train(
    context: typer.Context,
    data: Annotated[
        Path, typer.Argument(help="OGBench .npz, Minari .hdf5, or the folder or id of a Minari data set.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the run; the same command goes on from there.")
    ] = Path("gas-run"),
    stage: Annotated[
        Literal["all", "tdr", "graph", "policy"],
        typer.Option(
            help="One stage alone: tdr (embedding), graph, policy. The last two need the first in OUT."
        ),
    ] = "all",
    tdr_steps: Annotated[
        int, typer.Option(help="Steps of the embedding; decides most (paper: 1,000,000).")
    ] = 16_000,
    policy_steps: Annotated[int, typer.Option(help="Steps of the policy (paper: 1,000,000).")] = 8000,
    horizon: Annotated[
        float,
        typer.Option(
            help="H, distance of joined nodes in steps: 8 antmaze, 48 scene and kitchen, 32 humanoid."
        ),
    ] = 8.0,
    te_threshold: Annotated[
        float,
        typer.Option(help="Only states of this temporal efficiency make nodes (paper .99); -1 for all."),
    ] = 0.9,
    gamma: Annotated[float, typer.Option(help="Discount of the embedding; .995 for giant mazes.")] = 0.99,
    expectile: Annotated[
        float, typer.Option(help="Of the embedding (paper .999; .95 is steadier in few steps).")
    ] = 0.95,
    alpha: Annotated[
        float, typer.Option(help="Weight of imitation: 1 navigate and stitch, .01 explore, 10 kitchen.")
    ] = 1.0,
    latch: Annotated[
        int, typer.Option(help="Path of so many nodes leads straight to the goal; kitchen 1.")
    ] = 2,
    hidden: Annotated[int, typer.Option(help="Numbers of each of 3 hidden layers (paper 512).")] = 128,
    batch_size: Annotated[int, typer.Option(help="Transitions a step (paper 1024).")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Of Adam (paper 3e-4).")] = 1e-3,
    polyak: Annotated[
        float, typer.Option(help="Share by which slow copies follow (paper .005); more learns sooner.")
    ] = 0.02,
    standardize: Annotated[
        bool,
        typer.Option(help="Shift and scale each number of an observation by the data's mean and deviation."),
    ] = True,
    observation_key: Annotated[
        str | None, typer.Option(help="Entry of dictionary observations that is the state (Minari).")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto takes a GPU if there is one.")
    ] = "auto",
    threads: Annotated[int, typer.Option(help="Cores; small networks gain little from more.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of first weights and batches.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit embedding, graph and policy from a data set of trajectories without rewards.

    DATA is an OGBench .npz (observations, actions, terminals, perhaps next_observations), a Minari .hdf5,
    or the folder or id of a Minari data set. Actions must lie in [-1, 1]. The defaults suit point mazes on
    one core (about three minutes); the paper's are named with each option. An interrupted run goes on with
    the same command.

    Examples:

        hexad rl-graph gas train medium.npz --out run

        hexad rl-graph gas train data.npz --out run --stage graph --te-threshold 0.99
    """
    import torch

    from hexad.core.devices import find_device
    from hexad.rl_graph.gas.agent import GAS, STAGES, GASConfig
    from hexad.rl_graph.gas.fitting import FitConfig
    from hexad.rl_graph.gas.policy import PolicyConfig
    from hexad.rl_graph.gas.readers import read_trajectories
    from hexad.rl_graph.gas.run_folder import read_config
    from hexad.rl_graph.gas.saving import load_temporal
    from hexad.rl_graph.gas.temporal import TemporalConfig

    def fit(steps: int) -> FitConfig:
        return FitConfig(steps, batch_size, learning_rate, seed, accelerator=device)

    check_count("hidden", hidden)
    embedding = TemporalConfig(
        hidden=(hidden,) * 3,
        gamma=gamma,
        expectile=expectile,
        polyak=polyak,
        standardize=standardize,
        fit=fit(tdr_steps),
    )
    if stage in ("graph", "policy") and (saved := out / "temporal.safetensors").is_file():
        embedding = load_temporal(saved).config
    if stage == "graph" and not _given(context, "latch") and (described := out / "agent.json").is_file():
        latch = read_config(described)["latch"]
    config = GASConfig(
        embedding,
        PolicyConfig(hidden=(hidden,) * 3, alpha=alpha, polyak=polyak, fit=fit(policy_steps)),
        horizon,
        te_threshold,
        latch,
    )
    if device != "auto":
        find_device(device)
    with warnings_as_lines(stderr) as noticed:
        trajectories = read_trajectories(data, observation_key=observation_key)
    torch.set_num_threads(threads)
    unheeded = [name for name, heeding in STAGES_OF.items() if stage not in ("all", *heeding)]
    if unheeded := [f"--{name.replace('_', '-')}" for name in unheeded if _given(context, name)]:
        noticed.append(f"{', '.join(unheeded)} play no part in --stage {stage}")
        stderr.print(f"warning: {noticed[-1]}", style="yellow", markup=False, soft_wrap=True)
    stages = tuple(name for name in STAGES if stage in ("all", name))
    agent = GAS(config)
    agent.check_stages(trajectories, out, stages)  # of all stages, before the first one writes
    stopped: BaseException | None = None
    with warnings_as_lines(stderr) as said:  # which are shown however it ends
        try:
            for name in stages:
                with progress_bar(stderr, name, quiet=as_json) as tell:
                    agent.fit(
                        trajectories,
                        folder=out,
                        stages=(name,),
                        progress=lambda _, fraction, note, tell=tell: tell(fraction, note),
                    )
        except (KeyboardInterrupt, InputError) as error:
            stopped = error
    if isinstance(stopped, InputError):
        raise stopped
    if stopped is not None:
        stderr.print(
            f"interrupted: {out} keeps what is finished; the same command goes on",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130) from None
    _report_run(agent, out, trajectories, stages, list(dict.fromkeys([*noticed, *said])), as_json)


def _report_run(
    agent: Any, out: Path, data: Any, stages: tuple[str, ...], warnings: list[str], as_json: bool
) -> None:
    described: dict[str, Any] = {"run": str(out), "states": len(data), "stages": list(stages)}
    described |= {"trajectories": len(data.last_states), "warnings": warnings}
    if agent.graph_ is not None and "graph" in stages:
        graph = agent.graph_
        described |= {"nodes": len(graph.nodes), "edges": graph.edges, "kept": graph.kept}
        described["repairs"] = graph.repairs
    if as_json:
        print_json(described)
        return
    say(f"{out}: {', '.join(stages)} of {len(data):,} states in {described['trajectories']} trajectories")
    if "nodes" in described:
        say(
            f"graph: {described['nodes']} nodes of {described['kept']:.0%} of the states, "
            f"{described['edges']} edges, {described['repairs']} of them added to make it whole"
        )
