"""The command that measures inside models: probe."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from harness.commands.options import FORMATS, PATH, config_options, quiet_option, stdout_is_data


@click.command()
@config_options
@click.option("--output", "-o", type=PATH, help="Run directory (default: RESULTS/NAME from the config).")
@click.option("--format", "-f", "fmt", type=FORMATS, default="md", show_default=True, help="Format of the table.")
@quiet_option
def probe(
    config: Path, overrides: tuple[str, ...], data: Path | None, output: Path | None, fmt: str, quiet: bool
) -> None:
    """Measure what attention, gates and activations do inside CONFIG's models.

    For every model, context setting and length: attention on the first token (attention sinks), largest activations,
    gate scores, sparsity of the attention output, perplexity by position. The `probe` section of CONFIG says on which
    text and at which lengths; without one, the first 512 tokens of RULER's essays. The results are stored in the run
    directory, and the same command makes only what is missing.

    \b
      gatedeval probe configs/probe-demo.yaml
      gatedeval probe configs/table5.yaml -s probe.lengths=[4096,32768] -s probe.text=ruler:niah_single_2
    """
    from harness.commands.evaluate import load_config
    from harness.config.probing import ProbeOptions
    from harness.export import export_run
    from harness.run.manifest import manifest
    from harness.run.plan import build, recorded_date
    from harness.run.probe_plan import plan_probes, recorded
    from harness.run.probing import run_probes
    from harness.run.signals import Stopped, stop_on_signals
    from harness.store import Store, interruption_message
    from harness.store.probes import Probes

    with stdout_is_data() as out:
        loaded = load_config(config, overrides, data)
        path = output or loaded.results / loaded.name
        again = shlex.join(["gatedeval", *sys.argv[1:]])
        try:
            with stop_on_signals(lambda signal: interruption_message(path, signal, again)):
                plan = build(loaded, recorded_date(path))
                plan.check()
                options = loaded.probe or ProbeOptions()
                probes = plan_probes(plan, options)
                facts = {**manifest(plan), "probes": recorded(probes)}
                with Store.open(path, facts, cells=dict(plan.cells)) as store:
                    whole = run_probes(plan, options, probes, path, quiet=quiet)
                    store.finish()
        except Stopped as stopped:
            print(interruption_message(path, stopped.name, again), file=sys.stderr)
            sys.exit(stopped.code)
        if Probes(path).records(facts["probes"]):
            print(export_run(path, style="probe", fmt=fmt), end="", file=out)
    if not whole:
        sys.exit(1)
