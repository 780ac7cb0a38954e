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
    """Evaluate the demo's three trained models: two tables, figures and an HTML page, in about three minutes.

    The first table has the scores, the second what attention, gates and activations do inside the models.

    Models, data and config come with gatedeval. The same command continues an interrupted run.
    """
    from harness.commands.evaluate import packaged_config, print_run

    with stdout_is_data() as out:
        state = print_run(packaged_config("demo"), output, quiet, out)
        print(_about_sinks(output), end="", file=out)
    if state != "complete":
        sys.exit(1)

    from harness.figures import save_figures
    from harness.report import write_report

    for path in save_figures(output, None, ["svg"], baseline=BASELINE, candidate=CANDIDATE):
        print(path)
    print(write_report(output, None, baseline=BASELINE, candidate=CANDIDATE))


def _about_sinks(run: Path) -> str:
    """What the probes of these models show about attention sinks, in words; empty where there are none yet."""
    from harness.store.probes import Probes
    from harness.store.run import Store

    records = Probes(run).records(Store.read(run).manifest.get("probes"))
    if not records:
        return ""
    first, sinks = (max(r[key] for r in records) for key in ("first_token_attention", "sink_rate"))
    heads = "none of their heads is a sink head" if sinks == 0 else f"at most {sinks:.0%} of their heads are sink heads"
    return (
        f"\nThese models have a million parameters. Their F-Attn is at most {first:.3f}, with and without a gate, and"
        f" {heads}:\nthey neither support nor contradict what the paper says about attention sinks.\n"
    )
