"""The commands that read run directories: table, figures, compare, report, view, runs, merge, rebuild, import."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from harness.commands.options import ARMS, FORMATS, PATH, STEPS, STYLES, infer_option
from harness.types import GatedevalError


# fmt: off
@click.command()
@click.argument("run", type=PATH)
@click.option("--format", "-f", "fmt", type=FORMATS, default="md", show_default=True)
@click.option("--style", type=STYLES, help="What to tabulate (default: table5; probe where a run has probes alone).")
@click.option("-s", "short_style", type=STYLES, hidden=True)
@click.option("--reference", help="`paper` adds the paper's own rows (Table 5, or 4 for style probe); or a CSV file.")
@click.option("--baseline", help="Label of the model or arm that others are compared with (default: run.json's).")
@click.option("--candidate", help="Label of the model to compare with it (styles delta, training).")
@click.option("--model", help="Label of the model to export (style lm_eval; needed if the run has several).")
@click.option("--context", help="Label of the context setting to export (style lm_eval).")
@click.option("--partial", "allow_partial", is_flag=True, help="Average over the finished tasks if some are missing.")
@click.option("--intervals", is_flag=True, help="Show each score's 95% interval instead of its change (style table5).")
@click.option("--standalone", is_flag=True, help="LaTeX: write a complete document.")
@click.option("--models", multiple=True, metavar="A,B", help="Models to show, in this order.")
@click.option("--contexts", multiple=True, metavar="A,B", help="Context settings to show, in this order.")
@click.option("--benchmarks", multiple=True, metavar="A,B", help="Benchmarks to show, in this order.")
@click.option("--lengths", metavar="L,L", help="Lengths to show, e.g. 4K,128K.")
@click.option("--rename", multiple=True, metavar="A=B", help="Print model or context A as B. Repeat for more.")
@click.option("--digits", type=click.IntRange(0, 6), help="Decimals of scores (default: 2).")
@click.option("--caption", type=click.Choice(["full", "short"]), help="How much stands beneath (default: full).")
@click.option("--label", help=r"LaTeX: label of the table, for \ref, e.g. tab:ruler.")
@click.option("--transpose", is_flag=True, default=None, help="Models as columns (style table5).")
@click.option("--arms", type=ARMS, help="One row per arm; its checkpoints below it too; or no arms (default: rows).")
@click.option("--steps", type=STEPS, help="Training steps that an arm's row is about (default: last).")
@infer_option
def table(
    run: Path, lengths: str | None, rename: tuple[str, ...], models: tuple[str, ...], contexts: tuple[str, ...],
    benchmarks: tuple[str, ...], style: str | None, short_style: str | None, **options: Any,
) -> None:
    # fmt: on
    """Print the table of the run directory RUN.

    Rows, columns and words (--models to --transpose) are those of the config's section `table` unless given here. They
    change no number: averages and comparisons are over the whole run.
    """
    from harness.export import export_run

    if short_style:  # as older versions had it; -s is --set in every other command
        click.echo("gatedeval: -s is --set elsewhere; write --style here", err=True)
    text = export_run(
        run,
        style=short_style or style,
        **options,
        models=models or None,
        contexts=contexts or None,
        benchmarks=benchmarks or None,
        lengths=tuple(part.strip() for part in lengths.split(",")) if lengths else None,
        rename=dict(map(_renaming, rename)) or None,
    )
    print(text, end="")


def _renaming(text: str) -> tuple[str, str]:
    """ "A=B" as a pair."""
    old, equals, new = text.partition("=")
    if not old or not equals or not new:
        raise GatedevalError(f"--rename {text!r}: not of the form A=B, e.g. --rename 'gated=SDPA gate'")
    return old, new


@click.command()
@click.argument("run", type=PATH)
@click.option("--output", "-o", type=PATH, help="Folder to write to (default: RUN/figures).")
@click.option("--format", "-f", "formats", multiple=True, metavar="F,F", help="svg, png, pdf (default: all).")
@click.option("--baseline", help="Label of the baseline.")
@click.option("--candidate", help="Label of the model to compare with it.")
@click.option("--full-scale", is_flag=True, help="Draw curves over 0-100 instead of the range of the data.")
def figures(
    run: Path,
    output: Path | None,
    formats: tuple[str, ...],
    baseline: str | None,
    candidate: str | None,
    full_scale: bool,
) -> None:
    """Draw RUN's figures: score over length, tasks by length, the difference of two models."""
    from harness.figures import FORMATS as every
    from harness.figures import save_figures

    chosen = [part.strip() for text in formats for part in text.split(",") if part.strip()]
    for path in save_figures(run, output, chosen or every, baseline=baseline, candidate=candidate, full=full_scale):
        print(path)


@click.command()
@click.argument("run", type=PATH)
@click.option("--baseline", help="Label of the baseline (default: the config's first model).")
@click.option("--candidate", help="Label of the model to compare with it (needed if the run has more than two).")
@click.option("--context", help="Only this context setting.")
@click.option("--listed", default=40, show_default=True, help="Number of differing samples to list.")
@click.option(
    "--rerun", type=PATH, help="Another run of the same config: shows how much scores change from run to run."
)
@infer_option
def compare(
    run: Path, baseline: str | None, candidate: str | None, context: str | None, listed: int, rerun: Path | None,
    infer: str | None,
) -> None:
    """Compare two models of RUN: differences, intervals, paired tests, and the samples on which they differ.

    Two arms of several checkpoints are compared by their mean scores; with --infer recipe, the checkpoints are the unit
    of the tests. Name two checkpoints to compare these alone.
    """
    from harness.tables.compare import compare as comparison

    print(comparison(run, baseline, candidate, context, listed=listed, rerun=rerun, infer=infer))


@click.command()
@click.argument("run", type=PATH)
@click.option("--output", "-o", type=PATH, help="File to write (default: RUN/report.html).")
@click.option("--baseline", help="Label of the baseline.")
@click.option("--candidate", help="Label of the model to compare with it.")
@infer_option
def report(
    run: Path, output: Path | None, baseline: str | None, candidate: str | None, infer: str | None
) -> None:
    """Write RUN's report: one HTML page that needs no network."""
    from harness.report import write_report

    print(write_report(run, output, baseline=baseline, candidate=candidate, infer=infer))


@click.command()
@click.argument("folder", type=PATH, default=Path("results"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on (default: a free one).")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in the web browser.")
def view(folder: Path, port: int, browser: bool) -> None:
    """Browse the runs below FOLDER: states, scores, reports, and arms of any two runs compared. Ctrl-C ends it.

    The page is served on this machine only (127.0.0.1).
    """
    import webbrowser

    from harness.report.view import ADDRESS, server

    with server(folder, port) as serving:
        address = f"http://{ADDRESS}:{serving.server_port}/"
        print(address, flush=True)
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()


@click.command()
@click.argument("root", type=PATH, required=False)
def runs(root: Path | None) -> None:
    """List the runs below ROOT (default: results), newest first: state, samples, models."""
    from harness.store import list_runs
    from harness.text import align, counted

    if root is not None and not root.is_dir():
        raise GatedevalError(f"{root}: no such directory; give the folder that the run directories are in")
    root = root or Path("results")
    rows = []
    for run in list_runs(root):
        if "error" in run:
            facts = ["", "", run["error"]]
        else:
            what = [counted(run["samples"], "sample"), counted(run["cells"], "cell")]
            if run["probes"] and not run["cells"]:
                what = [counted(run["probes"], "probe"), ""]
            facts = [*what, ", ".join(run["models"])]
        rows.append([run["path"], run["state"], run["start"], *facts])
    if not rows:
        click.echo(f"no run in {root} yet: `gatedeval run CONFIG` writes one there", err=True)
    for line in align(rows, right=(3, 4)):
        print(line)


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--prefer",
    type=click.Choice(["first", "second"]),
    help="Whose answers to take where both runs have different answers of one model to the same samples.",
)
def merge(first: Path, second: Path, target: Path, prefer: Any) -> None:
    """Join FIRST and SECOND, runs of the same benchmark on other models, into TARGET; refuses unequal samples."""
    from harness.store import merge as join

    print(join(first, second, target, prefer=prefer))


@click.command()
@click.argument("run", type=PATH)
def rebuild(run: Path) -> None:
    """Make RUN's derived files again from its samples."""
    from harness.store import rebuild as derive

    for path in derive(run):
        print(path)


@click.command("import")
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option("--model", default="imported", show_default=True, help="Label of the model that gave the answers.")
@click.option("--context", help="Label of the context setting that it had (with --like: one of that run).")
@click.option("--like", type=PATH, help="A run to compare with: samples whose prompts are the same get its ids.")
@click.option(
    "--length", default=0, help="RULER length of the samples in tokens (0: by the folder's name, or unknown)."
)
@click.option("--task", help="Task of all rows, for files without a task column.")
def import_(
    source: Path,
    target: Path,
    model: str,
    context: str | None,
    like: Path | None,
    length: int,
    task: str | None,
) -> None:
    """Make a run TARGET of results SOURCE of another harness.

    SOURCE is a folder of lm-eval's results (samples_*.jsonl, results_*.json), or RULER predictions: a folder of
    NVIDIA's or kvpress' files, or one file (JSON lines or CSV: task, references, prediction).
    """
    from harness.store import import_predictions

    if source.is_file() and like is None and context is None and not source.name.startswith("results_"):
        print(import_predictions(source, target, model=model, length=length, task=task))
        return
    from harness.exchange.importing import import_results

    print(import_results(source, target, model=model, context=context, length=length, task=task, like=like))
