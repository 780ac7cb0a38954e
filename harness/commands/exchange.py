"""The command that hands a run to other people's tools: export."""

from __future__ import annotations

from pathlib import Path

import click

from harness import exchange
from harness.commands.options import PATH


@click.command()
@click.argument("run", type=PATH)
@click.option("--to", "tool", type=click.Choice(exchange.TOOLS), required=True, help="The tool.")
@click.option(
    "--output",
    "-o",
    "destination",
    metavar="DEST",
    help="Folder to write to. inspect, hub: RUN/inspect, RUN/hub unless given. wandb: an offline run for `wandb sync`. "
    "mlflow: a file store, or a tracking address. Without it wandb and mlflow send to where they are configured to.",
)
@click.option("--project", help="Project of wandb, experiment of mlflow (default: gatedeval).")
def export(run: Path, tool: str, destination: str | None, project: str | None) -> None:
    """Write RUN for another tool: Inspect's logs, Weights & Biases, MLflow, model cards of the hub.

    The clients of inspect, wandb and mlflow are extras of this package: pip install 'gatedeval[wandb]'.
    """
    from harness.commands.options import stdout_is_data

    with stdout_is_data() as out:  # clients print where they want
        for place in exchange.export_to(run, tool, destination, project):
            print(place, file=out)
