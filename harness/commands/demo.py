"""The command `demo`: the packaged config, models and data, from any directory, without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.commands.options import PATH, quiet_option, stdout_is_data

BASELINE, CANDIDATE = "baseline", "elementwise"


@click.command()
@click.option("--output", "-o", type=PATH, default=Path("results/demo"), show_default=True, help="Run directory.")
@quiet_option
def demo(output: Path, quiet: bool) -> None:
    """Evaluate the demo's three trained models: a table, figures and an HTML page, in about three minutes.

    Models, data and config come with gatedeval. The same command continues an interrupted run.
    """
    from harness.commands.evaluate import packaged_config, print_run

    with stdout_is_data() as out:
        state = print_run(packaged_config("demo"), output, quiet, out)
    if state != "complete":
        sys.exit(1)

    from harness.figures import save_figures
    from harness.report import write_report

    for path in save_figures(output, None, ["svg"], baseline=BASELINE, candidate=CANDIDATE):
        print(path)
    print(write_report(output, None, baseline=BASELINE, candidate=CANDIDATE))
