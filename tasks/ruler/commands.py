"""The commands `ruler generate` and `ruler score`. stdout is data, stderr is the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.data.folder import DataFolder
from harness.text import counted, read_length
from harness.types import GatedevalError

if TYPE_CHECKING:
    from tasks.ruler.scoring import TaskScore

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path)


def _length(text: str) -> int:
    try:
        return read_length(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from error


@click.group()
def ruler() -> None:
    """RULER's samples and scores, without a model."""


@ruler.command()
@click.argument("task")
@click.option("--tokenizer", required=True, help="The evaluated model's: a folder, a tokenizer.json, or a hub id.")
@click.option(
    "--length", required=True, type=_length, help="Tokens that prompt and answer may take together: 4096, 4K."
)
@click.option("--samples", default=500, show_default=True, type=int)
@click.option("--seed", default=42, show_default=True, type=int)
@click.option("--start", default=0, type=int, help="First row to write; earlier rows are drawn, not written.")
@click.option("--data", type=_FOLDER, help="The folder with essays, SQuAD and HotpotQA (default: GATEDEVAL_DATA).")
@click.option("--essays", type=_FILE, help="PaulGrahamEssays.json instead of the data folder's.")
@click.option("--squad", type=_FILE, help="SQuAD's dev-v2.0.json instead of the data folder's.")
@click.option("--hotpotqa", type=_FILE, help="HotpotQA's dev distractor file instead of the data folder's.")
@click.option(
    "--english-words", type=_FILE, help="NVIDIA/RULER's english_words.json, for common words beyond 190K tokens."
)
@click.option(
    "--profile", default="nvidia", show_default=True, help="nvidia: upstream's bytes; fair: independent draws."
)
@click.option("--answer-prefix", default="append", show_default=True, help="append, or drop it from the prompt.")
@click.option("--answer-tokens", type=int, help="The answer's budget, instead of RULER's own (for short lengths).")
@click.option("--max-model-len", type=int, help="Refuse samples that take more than this with their answer.")
@click.option("--counting", default="auto", type=click.Choice(["auto", "piecewise", "whole"]), hidden=True)
@click.option("--validity", is_flag=True, help="Write each sample's validity record instead of upstream's line.")
def generate(
    task: str, tokenizer: str, length: int, samples: int, start: int, data: Path | None, validity: bool,
    essays: Path | None, squad: Path | None, hotpotqa: Path | None, english_words: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Write a TASK's samples as JSON lines: upstream's own lines, byte for byte."""
    import json
    from dataclasses import asdict

    import jsonlines

    from tasks.ruler import generate as samples_of
    from tasks.ruler.generation import request_for

    named = {"essays": essays, "squad": squad, "hotpotqa": hotpotqa, "english_words": english_words}
    folder = DataFolder(data, {name: path for name, path in named.items() if path is not None})
    request = request_for(task, tokenizer, length=length, samples=samples, start=start, data=folder, **options)
    lines = jsonlines.Writer(sys.stdout, dumps=json.dumps)  # json's own separators and escapes: upstream's bytes
    overshoots = 0
    for sample in samples_of(request):
        lines.write({"row": sample.row, **asdict(sample.validity)} if validity else sample.record())
        overshoots += sample.validity.overshoot > 0
    for note in request.tokenizer.notes:
        click.echo(f"note: {note}", err=True)
    if overshoots:
        written = counted(samples - start, "sample")
        click.echo(
            f"note: {overshoots} of {written} take more than {length} tokens as sent, because upstream does not count "
            "special tokens; profile fair does",
            err=True,
        )


@ruler.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--task", help="The task, where the file has no task column and is not named after one.")
@click.option("--format", "style", default="text", show_default=True, type=click.Choice(["text", "csv", "json"]))
def score(file: Path, task: str | None, style: str) -> None:
    """Score a FILE of predictions (JSON lines or CSV, gzipped or not; columns task, references, prediction).

    `score` is RULER's own. `word-bounded`, beside it, does not count a reference inside a longer word (bag in airbag).
    """
    import json

    from tasks.ruler import scoring
    from tasks.ruler.protocol import TASKS

    scores = scoring.score_predictions(scoring.read_predictions(file, task))
    if not scores:
        raise GatedevalError(f"{file}: has no prediction to score")
    mean = scoring.average(scores)
    if style == "json":
        rows = {s.task: _facts(s) for s in scores}
        click.echo(json.dumps({"tasks": rows, "average": None if mean is None else round(mean, 2)}, indent=1))
        return
    if style == "csv":
        click.echo("task,samples,score,empty,word_bounded")
        for s in scores:
            click.echo(f"{s.task},{s.samples},{s.score:.2f},{s.empty},{s.word_bounded:.2f}")
        return
    click.echo(f"{'task':16} {'samples':>8} {'score':>7} {'empty':>6} {'word-bounded':>13}")
    for s in scores:
        click.echo(f"{s.task:16} {s.samples:8} {s.score:7.2f} {s.empty:6} {s.word_bounded:13.2f}")
    total = sum(s.samples for s in scores)
    click.echo(f"{'average of 13':16} {total:8} {'–' if mean is None else format(mean, '.2f'):>7}")  # noqa: RUF001
    if absent := [t for t in TASKS if t not in {s.task for s in scores}]:
        click.echo(f"no average: {', '.join(absent)} missing", err=True)


def _facts(score: TaskScore) -> dict[str, float]:
    return {
        "samples": score.samples,
        "score": round(score.score, 2),
        "empty": score.empty,
        "word_bounded": round(score.word_bounded, 2),
    }


@click.group()
def main() -> None:
    """RULER without the rest of the project: python -m tasks.ruler ruler ..."""


main.add_command(ruler)
