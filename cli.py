"""gatedeval's command line: parse, call, print. stdout is data, stderr is progress and logs.

Exit codes: 0 done, 1 incomplete (some cells failed; the table says which), 2 bad input or a disk that refuses, 130
interrupted by Ctrl-C (143 by SIGTERM, 129 by SIGHUP). Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from harness import __version__
from harness.config import Model
from harness.types import GatedevalError

PATH = click.Path(path_type=Path)
FORMATS = click.Choice(["md", "latex", "csv", "json", "html"])

LAZY = {
    "ruler": ("tasks.ruler.commands:ruler", "Generate RULER samples, or score predictions."),
    "data": ("tasks.ruler.commands:data", "Say what benchmark data is there, or fetch it."),
    "table": ("harness.commands.results:table", "Print a run's table."),
    "figures": ("harness.commands.results:figures", "Draw a run's figures for a paper."),
    "compare": ("harness.commands.results:compare", "Compare two models of a run, in words and numbers."),
    "report": ("harness.commands.results:report", "Write a run's report as one HTML page."),
    "runs": ("harness.commands.results:runs", "List runs and their state."),
    "merge": ("harness.commands.results:merge", "Join two runs of the same benchmark."),
    "rebuild": ("harness.commands.results:rebuild", "Make a run's derived files again."),
    "import": ("harness.commands.results:import_", "Make a run of a file of RULER predictions."),
}
"""Commands that live beside what they command, and their short help; imported when they are called."""


class Commands(click.Group):
    """Loads the lazy commands, and turns a GatedevalError into one message and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in LAZY:
            return super().get_command(ctx, name)
        module, _, attribute = LAZY[name][0].partition(":")
        return getattr(import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(90)) for name, command in self.commands.items()]
        rows += [(name, short) for name, (_, short) in LAZY.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GatedevalError as error:
            print(f"gatedeval: {error}", file=sys.stderr)
            ctx.exit(2)
        except BrokenPipeError:  # `gatedeval table RUN | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            ctx.exit(0)
        except KeyboardInterrupt:
            print("gatedeval: interrupted", file=sys.stderr)
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="gatedeval")
def cli() -> None:
    """Does the model still work at 128K, and is the gated one really better?

    One YAML file names models (baseline and gated attention), context settings (RoPE base, YaRN) and benchmarks (RULER
    4K-128K, MMLU, GSM8k, any lm-eval task); one command turns it into a comparison in the style of the Gated Attention
    paper's Table 5.

    \b
      gatedeval plan configs/table5.yaml       what would be run, and what cannot be
      gatedeval run configs/table5.yaml        run it, or go on with it; prints the table
      gatedeval table results/table5 -f latex  the table again, in another format
      gatedeval check PATH                     what a checkpoint is: gate, layout, rope, tokenizer
    """


def config_options(command: Any) -> Any:
    """The options that `run` and `plan` share."""
    for option in (
        click.option("--set", "-s", "overrides", metavar="KEY=VALUE", multiple=True,
                     help="Override a config value, e.g. -s benchmarks.0.samples=20 -s engine.enforce_eager=true."),
        click.option("--data", type=PATH, help="Folder with benchmark data (default: GATEDEVAL_DATA, else the hub)."),
        click.argument("config", type=PATH),
    ):  # fmt: skip
        command = option(command)
    return command


def _load(config: Path, overrides: tuple[str, ...], data: Path | None) -> Any:
    from harness.config import load

    # as pairs: a path is not to be read as YAML
    given: list[Any] = [*overrides, *([("data", str(data))] if data is not None else [])]
    return load(config, given)


@cli.command()
@config_options
@click.option("--output", "-o", type=PATH, help="Run directory (default: RESULTS/NAME from the config).")
@click.option("--format", "-f", "fmt", type=FORMATS, default="md", show_default=True, help="Format of the final table.")
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
def run(
    config: Path, overrides: tuple[str, ...], data: Path | None, output: Path | None, fmt: str, quiet: bool
) -> None:
    """Run CONFIG and print the table. The same command goes on where an earlier one stopped."""
    with _stdout_is_data() as out:
        from harness.export import export_run

        loaded = _load(config, overrides, data)
        path = output or loaded.results / loaded.name
        state = _work_off(loaded, path, quiet)
        print(export_run(path, style="table5", fmt=fmt, allow_partial=True), end="", file=out)
        if state != "complete":
            sys.exit(1)


def _work_off(config: Any, path: Path, quiet: bool) -> str:
    """Plan `config` and run it into `path`; says on stderr how it went, and returns the run's state."""
    from harness.run.plan import build
    from harness.run.progress import Progress
    from harness.run.runner import run as run_plan
    from harness.run.signals import Stopped, stopping
    from harness.store import last_words

    again = shlex.join(["gatedeval", *sys.argv[1:]])
    try:
        with stopping(lambda signal: last_words(path, signal, again)):
            plan = build(config)
            plan.check()
            state, tally = run_plan(plan, path, progress=Progress(plan, quiet=quiet))
    except Stopped as stopped:
        print(last_words(path, stopped.name, again), file=sys.stderr)
        sys.exit(stopped.code)
    note = f"{tally.asked} samples answered, {tally.reused} found finished"
    note += f", {tally.redone} of them done again because something they depend on changed" if tally.redone else ""
    print(f"{path}: {state}; {note}", file=sys.stderr)
    return state


# fmt: off
@cli.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--rope-theta", metavar="B,B,...", help="RoPE bases, e.g. 1e4,5e4,1e6. Default: the checkpoint's own.")
@click.option("--yarn-factor", metavar="F,F,...", default="1", show_default=True,
              help="YaRN factors, each with each base; 1 is the base alone.")
@click.option("--original", type=click.IntRange(min=1), metavar="N",
              help="Tokens that the model was trained on, which YaRN stretches (needed with a factor above 1).")
@click.option("--lengths", metavar="L,L,...", required=True,
              help="Tokens of prompt and answer, e.g. 4096,8192 or 4K,8K: a heat map each.")
@click.option("--task", "tasks", multiple=True, default=["niah_single_1"], show_default=True,
              help="RULER task; again for more (fields are then their mean), or all.")
@click.option("--samples", type=click.IntRange(min=1), default=20, show_default=True,
              help="Samples per field, task and length.")
@click.option("--native/--no-native", default=True, show_default=True,
              help="Also evaluate the checkpoint's own setting.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              show_default=True, help="Of weights and arithmetic.")
@click.option("--seed", default=42, show_default=True, help="RULER's seed.")
@click.option("--set", "-s", "overrides", metavar="KEY=VALUE", multiple=True,
              help="Any other config value, e.g. -s engine.enforce_eager=true.")
@click.option("--data", type=PATH, help="Folder with benchmark data (default: GATEDEVAL_DATA, else the hub).")
@click.option("--output", "-o", type=PATH, help="Run directory (default: results/sweep-LABELS).")
@click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
def sweep(
    models: tuple[str, ...], rope_theta: str | None, yarn_factor: str, original: int | None, lengths: str,
    tasks: tuple[str, ...], samples: int, native: bool, dtype: str, seed: int, overrides: tuple[str, ...],
    data: Path | None, output: Path | None, quiet: bool,
) -> None:
    # fmt: on
    """Score of each MODEL over RoPE base x YaRN factor, as heat maps.

    MODEL is a directory or hub id, or LABEL=MODEL. One engine is started per model, whatever the number of settings:
    each only replaces the rotary tables in it. The result is a run like any other: the same command goes on where an
    earlier one stopped, more values only add what is new, and `gatedeval table`, `report` and `compare` read it.
    The maps are printed, and drawn in RUN/sweep.svg.

    \b
      gatedeval sweep MODEL --rope-theta 1e4,1e5,1e6 --lengths 4K,8K,16K
          a longer context by the base alone: 3 settings, 3 maps of one column
      gatedeval sweep MODEL --rope-theta 1e4,1e6 --yarn-factor 1,2,4,8 --original 4096 --lengths 4K,32K
          8 settings; YaRN x 4 reaches 16K, so its fields at 32K are a dash, not a zero
      gatedeval sweep base=A gated=B --yarn-factor 1,4 --original 32768 --lengths 32K,128K --task vt --task cwe
          two models, the mean of two tasks, on each checkpoint's own base
    """
    with _stdout_is_data() as out:
        from harness.run import sweep as sweeping

        # as pairs: a path is not to be read as YAML
        given: list[Any] = [*overrides, *([("data", str(data))] if data is not None else [])]
        config = sweeping.build(
            models,
            bases=sweeping.parse_list(rope_theta, "--rope-theta", sweeping.a_base) if rope_theta else [None],
            factors=sweeping.parse_list(yarn_factor, "--yarn-factor", sweeping.a_factor),
            lengths=sweeping.parse_list(lengths, "--lengths", sweeping.a_length),
            tasks=tasks,
            samples=samples,
            original=original,
            native=native,
            dtype=dtype,
            seed=seed,
            overrides=given,
        )
        path = output or config.results / config.name
        state = _work_off(config, path, quiet)
        from harness.figures.sweep import save
        from harness.store import Store
        from harness.tables.sweep import render

        run = Store.read(path)
        print(render(run), end="", file=out)
        print(save(run), file=sys.stderr)
        if state != "complete":
            sys.exit(1)


@cli.command()
@config_options
def plan(config: Path, overrides: tuple[str, ...], data: Path | None) -> None:
    """Show CONFIG's cells, samples, prompt tokens and refusals, without loading a model."""
    from harness.run.plan import build
    from harness.run.plan_text import render

    built = build(_load(config, overrides, data))
    print(render(built))
    built.check()


@cli.command()
@click.argument("model")
@click.option("--subfolder", help="Folder within the directory or hub repository.")
@click.option("--revision", help="Revision of the hub repository.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(model: str, subfolder: str | None, revision: str | None, as_json: bool) -> None:
    """Say what the checkpoint MODEL (a directory or hub id) is, or what is wrong with it."""
    from harness.run.plan_text import describe

    print(describe(Model(label=model, path=model, subfolder=subfolder, revision=revision), as_json=as_json))


@cli.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--gate", type=click.Choice(["none", "headwise", "elementwise"]), required=True)
def twin(source: Path, target: Path, gate: Any) -> None:
    """Write TARGET, a gated twin of SOURCE that computes exactly the same function.

    Gate weights are zero, so that every gate is 0.5, and the output projection is doubled. Evaluating both shows what
    the harness itself adds to a comparison: it must be nothing.
    """
    from harness.models.twin import make_twin

    make_twin(source, target, gate)
    print(target)


@cli.command("make-tiny")
@click.argument("root", type=PATH)
def make_tiny(root: Path) -> None:
    """Write ROOT/{baseline,headwise,elementwise}: tiny models with random weights, for smoke tests."""
    from harness.models.twin import make_tiny as make

    for path in make(root):
        print(path)


@contextlib.contextmanager
def _stdout_is_data() -> Iterator[Any]:
    """Send whatever else writes to file descriptor 1 (engine workers included) to stderr; yields the real stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "w", encoding="utf-8", closefd=False) as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def main() -> None:
    """Entry point of the `gatedeval` command: ends the process."""
    try:
        cli(prog_name="gatedeval")
    except SystemExit as end:
        if "torch" in sys.modules and (end.code is None or isinstance(end.code, int)):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> NoReturn:
    """Exit as Python does, but leave memory to the system: taking vLLM's modules apart one by one takes seconds."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
