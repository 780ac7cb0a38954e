"""The commands that evaluate models: run, plan, sweep."""

from __future__ import annotations

import contextlib
import dataclasses
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
    budget_option,
    cluster_option,
    config_options,
    data_option,
    finite_option,
    length_option,
    overrides_option,
    quiet_option,
    stdout_is_data,
    values,
    with_cluster,
)
from harness.types import GatedevalError

if TYPE_CHECKING:
    from harness.cluster.connection import Cluster
    from harness.config import Config
    from harness.run.budget import Budget
    from harness.run.costs import Costs
    from harness.run.plan import Plan
    from harness.run.progress import Progress

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
"""The configs that come with the project."""


# fmt: off
@click.command()
@config_options
@click.option("--output", "-o", type=PATH, help="Run directory (default: RESULTS/NAME from the config).")
@click.option("--format", "-f", "fmt", type=FORMATS, default="md", show_default=True, help="Format of the final table.")
@budget_option
@cluster_option
@quiet_option
def run(
    config: Path, overrides: tuple[str, ...], data: Path | None, output: Path | None, fmt: str, budget: float | None,
    cluster: str | None,
    quiet: bool,
) -> None:
    # fmt: on
    """Run CONFIG and print the table. The same command continues an interrupted run.

    CONFIG is a YAML file. If there is no such file, configs/NAME.yaml means the config NAME that comes with gatedeval.

    With --budget, every reported number gets samples for the same precision: the best for which the whole run is
    predicted to fit into the time, at most what CONFIG asks for. The plan is shown before it starts. A model whose
    speed on this machine is not known yet is measured first.

    With --cluster many engines answer at once, on the GPUs of this machine or of many. A run that was begun without it
    goes on with it, and the reverse: samples and hashes are the same.
    """
    with stdout_is_data() as out:
        loaded = load_config(config, overrides, data, cluster)
        path = output or loaded.results / loaded.name
        fits = None
        if budget is not None:
            one_engine(loaded)
            loaded, fits = within_budget(loaded, path, budget, quiet)
        state = print_run(loaded, path, quiet, out, fmt, fits)
    if state != "complete":
        sys.exit(1)


@click.command()
@config_options
@budget_option
@cluster_option
@click.option("--measure", is_flag=True, help="Measure the speed of models that no earlier run tells.")
@click.option(
    "--device-memory", type=click.FloatRange(min=0, min_open=True), metavar="GIB", callback=finite_option,
    help="Plan for GPUs of so many GiB each, instead of this machine's devices.",
)  # fmt: skip
def plan(
    config: Path, overrides: tuple[str, ...], data: Path | None, budget: float | None, cluster: str | None,
    measure: bool, device_memory: float | None,
) -> None:
    # fmt: on
    """Show CONFIG's cells, samples, prompt tokens, memory, time and errors, without loading a model.

    Memory is computed from the checkpoints' headers; what cannot fit the device is an error that names the option to
    change. Time is known where the results folder has a run with a model of the same shape on this machine, or after
    --measure, which starts each model's engine and measures for about ten seconds (kept in RESULTS/speeds.json).

    With --cluster, also how the requests of each model spread over the engines. Memory and time are those of one.

    \b
      gatedeval plan configs/table5.yaml                       what would run, and whether it fits
      gatedeval plan configs/demo.yaml --measure               how long it will take
      gatedeval plan configs/demo.yaml --budget 2min           how many samples fit into that time
      gatedeval plan configs/table5.yaml --device-memory 80    whether it would fit 80 GiB GPUs
      gatedeval plan configs/table5.yaml --cluster auto        how the work spreads over a Ray cluster
    """
    from harness.commands.planning import fitted, measured, planned_for, show

    loaded = load_config(config, overrides, data, cluster)
    path = loaded.results / loaded.name
    if budget is not None:
        one_engine(loaded)
    built = planned_for(loaded, device_memory)
    if measure and not built.refusals:
        measured(built, path)
    fits = None
    if budget is not None and not built.refusals:
        fits = fitted(built, budget, path)
        built = planned_for(fits.apply(loaded), device_memory)
    show(built, path, sys.stdout, fits)
    built.check()
    if loaded.cluster is not None:
        from harness.run.costs import Costs, results_of
        from harness.run.plan_cluster import render_cluster

        print(render_cluster(Costs(built, results_of(path, built)), loaded.cluster))
    if loaded.probe is not None:
        from harness.run.probe_plan import plan_probes

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
    each only replaces the rotary tables in it (where vLLM's tables cannot be replaced, one per setting). The result is
    a run like any other: the same command continues it, more values add only the new fields, and `gatedeval table`,
    `report` and `compare` read it. The maps are printed, and drawn in RUN/sweep.svg.

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


def within_budget(config: Config, path: Path, seconds: float, quiet: bool) -> tuple[Config, Budget]:
    """`config` with as many samples as fit into `seconds`, and what is recorded of it; on stderr, the plan.

    A run directory that was begun with the same budget keeps its numbers: the same command continues it.
    """
    from harness.commands.planning import fitted, measured, planned_for, show
    from harness.run.budget import recorded

    if (budget := recorded(path, config, seconds)) is not None:
        return budget.apply(config), budget
    built = planned_for(config, None)
    built.check()
    measured(built, path)
    budget = fitted(built, seconds, path)
    if not quiet:
        show(planned_for(budget.apply(config), None), path, sys.stderr, budget)
    return budget.apply(config), budget


def print_run(
    config: Config, path: Path, quiet: bool, out: TextIO, fmt: str = "md", budget: Budget | None = None
) -> str:
    """Run `config` into the directory `path`, print its table to `out`, and return the run's state."""
    from harness.export import export_run
    from harness.store.probes import Probes

    state = evaluate(config, path, quiet, budget)
    if config.benchmarks:
        print(export_run(path, style="table5", fmt=fmt), end="", file=out)
    if config.probe is not None and Probes(path).records():
        print(("\n" if config.benchmarks else "") + export_run(path, style="probe", fmt=fmt), end="", file=out)
    return state


def evaluate(config: Config, path: Path, quiet: bool, budget: Budget | None = None) -> str:
    """Plan `config` and run it into `path`; say on stderr how it went, and return the run's state.

    `budget`: what gave the config its numbers of samples, for run.json.
    """
    from harness.run.costs import Costs, results_of
    from harness.run.plan import build, recorded_date
    from harness.run.probe_plan import plan_probes
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
        from harness.cluster.joining import check_address

        check_address(config.cluster.address)  # told before the plan is made
    try:
        with stop_on_signals(lambda signal: interruption_message(path, signal, again)):
            plan = build(config, recorded_date(path))
            plan.check()
            plan.budget = dataclasses.asdict(budget) if budget is not None else None
            # a text that is too short is told before hours of samples
            probes = plan_probes(plan, config.probe) if config.probe is not None else None
            costs = Costs(plan, results_of(path, plan))
            progress = Progress(plan, quiet=quiet, costs=costs)
            with _cluster(plan, progress, costs) as cluster:
                state, tally = run_plan(plan, path, progress=progress, cluster=cluster, probes=probes, costs=costs)
    except Stopped as stopped:
        print(interruption_message(path, stopped.name, again), file=sys.stderr)
        sys.exit(stopped.code)
    if quiet:  # the exit status and the table say what failed
        return state
    note = f"{counted(tally.answered, 'sample')} answered, {tally.reused} found finished"
    note += f", {tally.redone} of them done again because something they depend on changed" if tally.redone else ""
    note += f", {tally.rescored} of the finished ones scored again" if tally.rescored else ""
    note += f", {tally.relabelled} of the finished ones found under another label" if tally.relabelled else ""
    if probes is not None:
        note += f"; {counted(tally.probes, 'probe')} made, {tally.stored_probes} found finished"
    print(f"{path}: {state}; {note}", file=sys.stderr)
    print(progress.closing(tally.sent_tokens, tally.cached_tokens), file=sys.stderr)
    return state


@contextlib.contextmanager
def _cluster(plan: Plan, progress: Progress, costs: Costs) -> Iterator[Cluster | None]:
    """The config's cluster; None without one. At the end nothing of the run is left there."""
    options = plan.config.cluster
    if options is None:
        yield None
        return
    from harness.cluster.connection import Cluster, on_ray

    models = [(planned.model, planned.checkpoint) for planned in plan.models.values()]
    requests = {label: costs.requests(label) for label in plan.engines}
    with Cluster(on_ray(options, plan.config.engine), models, costs=requests, say=progress.say) as cluster:
        progress.engines = cluster.standing
        yield cluster


def one_engine(config: Config) -> None:
    """Refuse a time limit on a cluster: the predicted time is that of one engine on this machine."""
    if config.cluster is not None:
        raise GatedevalError(
            "--budget predicts the time of one engine on this machine, which says nothing about a cluster; leave out"
            " --budget, or add --cluster none"
        )
