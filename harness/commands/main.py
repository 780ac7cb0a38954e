"""The command `gatedeval`: joins the groups of commands, and turns errors into one message and an exit code.

Exit codes: 0 done, 1 incomplete (some cells failed; the table says which), 2 bad input or a disk that refuses, 130
interrupted by Ctrl-C (143 by SIGTERM, 129 by SIGHUP).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any, NoReturn

import click

from harness import __version__
from harness.commands import checkpoints, demo, evaluate, exchange, probing, results, ruler
from harness.types import GatedevalError


class Commands(click.Group):
    """Prints a GatedevalError as one message and exits with code 2; gives short helps a whole line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.get_short_help_str(limit=90)) for name, c in sorted(self.commands.items())])

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
      gatedeval demo                           three small trained models; needs nothing but this package
      gatedeval plan configs/table5.yaml       what would be run, and what cannot be
      gatedeval run configs/table5.yaml        run it, or continue it; prints the table
      gatedeval table results/table5 -f latex  the table again, in another format
      gatedeval check PATH                     what a checkpoint is: gate, layout, rope, tokenizer
    """


for command in (
    demo.demo,
    evaluate.run, evaluate.plan, evaluate.sweep, probing.probe,
    checkpoints.check, checkpoints.twin, checkpoints.convert, checkpoints.make_tiny,
    results.table, results.figures, results.compare, results.report, results.view,
    results.runs, results.merge, results.rebuild, results.import_, exchange.export,
    ruler.ruler, ruler.data,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command of `sys.argv` and end the process."""
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
