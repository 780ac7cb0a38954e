"""The commands that evaluate models: run, plan, sweep."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from harness.commands.options import (
    FORMATS,
    PATH,
    cluster_option,
    config_options,
    data_option,
    length_option,
    overrides_option,
    quiet_option,
    stdout_is_data,
    values,
    with_cluster,
)

if TYPE_CHECKING:
    from harness.config import Config
    from harness.config.probing import ProbeOptions
    from harness.run.plan import Plan
    from harness.run.probing import PlannedProbe
    from harness.run.progress import Progress
    from harness.run.session import EngineFactory

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
"""The configs that come with the project."""


@click.command()
@config_options
@click.option("--output", "-o", type=PATH, help="Run directory (default: RESULTS/NAME from the config).")
@click.option("--format", "-f", "fmt", type=FORMATS, default="md", show_default=True, help="Format of the final table.")
@cluster_option
@quiet_option
def run(
    config: Path,
    overrides: tuple[str, ...],
    data: Path | None,
    output: Path | None,
    fmt: str,
    cluster: str | None,
    quiet: bool,
) -> None:
    """Run CONFIG and print the table. The same command continues an interrupted run.

    CONFIG is a YAML file. If there is no such file, configs/NAME.yaml means the config NAME that comes with gatedeval.

    With --cluster many engines answer at once, on the GPUs of this machine or of many. A run that was begun without it
    goes on with it, and the reverse: samples and hashes are the same.
    """
    with stdout_is_data() as out:
        loaded = load_config(config, overrides, data, cluster)
        state = print_run(loaded, output or loaded.results / loaded.name, quiet, out, fmt)
    if state != "complete":
        sys.exit(1)


@click.command()
@config_options
@cluster_option
def plan(config: Path, overrides: tuple[str, ...], data: Path | None, cluster: str | None) -> None:
    """Show CONFIG's cells, samples, prompt tokens and errors, without loading a model.

    With --cluster, also how the requests of each model spread over the engines.
    """
    from harness.run.plan import build
    from harness.run.plan_text import render

    loaded = load_config(config, overrides, data, cluster)
    built = build(loaded)
    if built.cells:  # else everything was refused, and a table of zeros would say nothing
        print(render(built))
    built.check()
    if loaded.cluster is not None:
        from harness.run.plan_cluster import render_cluster

        print(render_cluster(built, loaded.cluster))
    if loaded.probe is not None:
        from harness.run.probing import plan_probes

        for probe in plan_probes(built, loaded.probe):
            print(f"probe: {probe.model}, {probe.setting.label}, {len(probe.plan.ids)} tokens of {loaded.probe.text}")


# fmt: off
@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--rope-theta", metavar="B,B,...", help="RoPE bases, e.g. 1e4,5e4,1e6. Default: the checkpoint's own.")
@click.option("--yarn-factor", metavar="F,F,...", default="1", show_default=True,
              help="YaRN factors, each with each base; 1 is the base alone.")
@click.option("--original", type=length_option, metavar="N",
              help="Tokens that the model was trained on, which YaRN stretches (needed with a factor above 1).")
@click.option("--lengths", metavar="L,L,...", required=True,
              help="Tokens of prompt and answer, e.g. 4096,8192 or 4K,8K: a heat map each.")
@click.option("--task", "tasks", multiple=True, default=["niah_single_1"], show_default=True,
              help="RULER task. Repeat for more (each field is then their mean), or `all`.")
@click.option("--samples", type=click.IntRange(min=1), default=20, show_default=True,
              help="Samples per field, task and length.")
@click.option("--native/--no-native", default=True, show_default=True,
              help="Also evaluate the checkpoint's own setting.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              show_default=True, help="Type of weights and arithmetic.")
@click.option("--seed", default=42, show_default=True, help="RULER's seed.")
@overrides_option
@data_option
@click.option("--output", "-o", type=PATH, help="Run directory (default: results/sweep-LABELS).")
@quiet_option
def sweep(
    models: tuple[str, ...], rope_theta: str | None, yarn_factor: str, original: int | None, lengths: str,
    tasks: tuple[str, ...], samples: int, native: bool, dtype: str, seed: int, overrides: tuple[str, ...],
    data: Path | None, output: Path | None, quiet: bool,
) -> None:
    # fmt: on
    """Score of each MODEL over RoPE base x YaRN factor, as heat maps.

    MODEL is a directory or hub id, or LABEL=MODEL. One engine is started per model, whatever the number of settings:
    each only replaces the rotary tables in it. The result is a run like any other: the same command continues
    it, more values add only the new fields, and `gatedeval table`, `report` and `compare` read it.
    The maps are printed, and drawn in RUN/sweep.svg.

    \b
      gatedeval sweep MODEL --rope-theta 1e4,1e5,1e6 --lengths 4K,8K,16K
          a longer context by the base alone: 3 settings, 3 maps of one column
      gatedeval sweep MODEL --rope-theta 1e4,1e6 --yarn-factor 1,2,4,8 --original 4096 --lengths 4K,32K
          8 settings; YaRN x 4 reaches 16K, so its fields at 32K are a dash, not a zero
      gatedeval sweep base=A gated=B --yarn-factor 1,4 --original 32768 --lengths 32K,128K --task vt --task cwe
          two models, the mean of two tasks, on each checkpoint's own base
    """
    from harness.run import sweep as sweeping
    from harness.text import read_length

    with stdout_is_data() as out:
        config = sweeping.build(
            models,
            bases=sweeping.parse_list(rope_theta, "--rope-theta", sweeping.a_base) if rope_theta else [None],
            factors=sweeping.parse_list(yarn_factor, "--yarn-factor", sweeping.a_factor),
            lengths=sweeping.parse_list(lengths, "--lengths", read_length),
            tasks=tasks,
            samples=samples,
            original=original,
            native=native,
            dtype=dtype,
            seed=seed,
            overrides=values(overrides, data),
        )
        path = output or config.results / config.name
        state = evaluate(config, path, quiet)
        from harness.figures.sweep import save
        from harness.store import Store
        from harness.tables.sweep import render

        finished = Store.read(path)
        print(render(finished), end="", file=out)
        picture = save(finished)
        if not quiet:
            print(picture, file=sys.stderr)
    if state != "complete":
        sys.exit(1)


def load_config(path: Path, overrides: tuple[str, ...], data: Path | None, cluster: str | None = None) -> Config:
    """The config at `path`; where there is none, the packaged one of that name (`configs/NAME.yaml`)."""
    from harness.config import load

    packaged = CONFIGS / path.name
    if not path.exists() and str(path.parent) == CONFIGS.name and packaged.is_file():
        path = packaged
    return load(path, with_cluster(values(overrides, data), cluster))


def packaged_config(name: str) -> Config:
    """The config NAME that comes with the project."""
    from harness.config import load

    return load(CONFIGS / f"{name}.yaml")


def print_run(config: Config, path: Path, quiet: bool, out: TextIO, fmt: str = "md") -> str:
    """Run `config` into the directory `path`, print its table to `out`, and return the run's state."""
    from harness.export import export_run
    from harness.store.probes import Probes

    state = evaluate(config, path, quiet)
    if config.benchmarks:
        print(export_run(path, style="table5", fmt=fmt), end="", file=out)
    if config.probe is not None and Probes(path).records():
        print(("\n" if config.benchmarks else "") + export_run(path, style="probe", fmt=fmt), end="", file=out)
    return state


def evaluate(config: Config, path: Path, quiet: bool) -> str:
    """Plan `config` and run it into `path`; say on stderr how it went, and return the run's state."""
    from harness.run.plan import build, recorded_date
    from harness.run.probing import plan_probes
    from harness.run.progress import Progress
    from harness.run.runner import run as run_plan
    from harness.run.signals import Stopped, stop_on_signals
    from harness.store import interruption_message
    from harness.text import counted

    if quiet:
        os.environ["GATEDEVAL_LOG"] = "ERROR"  # the process that makes samples inherits it
        logging.getLogger("gatedeval").setLevel(logging.ERROR)
    again = shlex.join(["gatedeval", *sys.argv[1:]])
    if config.cluster is not None:
        from harness.cluster.on_ray import check_address

        check_address(config.cluster.address)  # told before the plan is made
    try:
        with stop_on_signals(lambda signal: interruption_message(path, signal, again)):
            plan = build(config, recorded_date(path))
            plan.check()
            # a text that is too short is told before hours of samples
            probes = plan_probes(plan, config.probe) if config.probe is not None else []
            progress = Progress(plan, quiet=quiet)
            with _cluster(plan, progress) as start:
                state, tally = run_plan(plan, path, progress=progress, engine_factory=start)
            if config.probe is not None:
                state = _probe(plan, config.probe, probes, path, quiet, state)
    except Stopped as stopped:
        print(interruption_message(path, stopped.name, again), file=sys.stderr)
        sys.exit(stopped.code)
    if quiet:  # the exit status and the table say what failed
        return state
    note = f"{counted(tally.answered, 'sample')} answered, {tally.reused} found finished"
    note += f", {tally.redone} of them done again because something they depend on changed" if tally.redone else ""
    note += f", {tally.rescored} of the finished ones scored again" if tally.rescored else ""
    note += f", {tally.relabelled} of the finished ones found under another label" if tally.relabelled else ""
    print(f"{path}: {state}; {note}", file=sys.stderr)
    print(progress.closing(tally.sent_tokens, tally.cached_tokens), file=sys.stderr)
    return state


@contextlib.contextmanager
def _cluster(plan: Plan, progress: Progress) -> Iterator[EngineFactory | None]:
    """What starts a model's engines on the config's cluster; None without one. At the end nothing runs there."""
    options = plan.config.cluster
    if options is None:
        yield None
        return
    from harness.cluster.connection import Cluster, on_ray

    models = [(planned.model, planned.checkpoint) for planned in plan.models.values()]
    with Cluster(on_ray(options, plan.config.engine), models, say=progress.say) as cluster:
        progress.engines = cluster.standing
        yield cluster.start


def _probe(
    plan: Plan, options: ProbeOptions, probes: list[PlannedProbe], path: Path, quiet: bool, state: str
) -> str:
    """Make the probes of a run that has its samples; the run's state. A failed probe makes it incomplete."""
    from harness.run.probing import recorded, run_probes
    from harness.store.files import RunLock
    from harness.store.manifest import read_manifest, write_manifest

    lock = RunLock(path / "lock")
    try:
        state = state if run_probes(plan, options, probes, path, quiet=quiet) else "incomplete"
        write_manifest(path, {**read_manifest(path), "probes": recorded(probes), "state": state})
    finally:
        lock.release()
    return state
