"""`hexad llm-efficiency moe-laws`: plan a training run, and fit a law to runs of your own."""

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Joint MoE scaling laws.")
