"""Weights & Biases: one run per row of Table 5 and one with the tables and the report, in a group of the run's name.

Every score is in its run's summary (`score/ruler/4096`); benchmarks over length are also logged as a curve
(`curve/ruler` over `length`, in tokens).
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.exchange.protocol import client, folder
from harness.exchange.results import Results, Row, clean_name
from harness.types import GatedevalError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator


def send(results: Results, destination: str | None, project: str) -> list[str]:
    """Log the run; with a folder as `destination`: offline, for `wandb sync`. By default as the client is configured.

    See `harness.exchange.protocol.Send`.
    """
    wandb = client("wandb", "wandb")
    if destination is not None:
        folder(destination)
    session = _Session(wandb, results, destination, project)
    places = []
    try:
        for row in results.rows:
            with session.run(row.title, results.identity(row.model, row.context), "evaluation", row.facts) as run:
                _row(run, row)
                places.append(_place(run))
        for row in results.arms:
            with session.run(row.title, results.identity("arm", row.model, row.context), "arm", row.facts) as run:
                _row(run, row)
                places.append(_place(run))
        with session.run(results.name, results.identity(), "tables", results.run_facts()) as run:
            _files(wandb, run, results)
            places.append(_place(run))
        if wandb.run is None:  # else a run of the caller's own is active
            # `finish` returns before W&B's service has written the last run's file; its end is waited for.
            wandb.teardown()
    except wandb.errors.Error as error:
        raise GatedevalError(
            f"Weights & Biases refuses: {first_line(error)}; log in with `wandb login`, or name a folder with -o: "
            "its offline runs can be sent later by `wandb sync`"
        ) from error
    return places


class _Session:
    """What all W&B runs of one export share."""

    def __init__(self, wandb: Any, results: Results, destination: str | None, project: str) -> None:
        self._wandb, self._results, self._destination, self._project = wandb, results, destination, project

    @contextmanager
    def run(self, name: str, identity: str, job: str, facts: dict[str, Any]) -> Iterator[Any]:
        """A W&B run, finished at the end; a second export goes on with the first one's run."""
        settings = self._wandb.Settings(
            silent=True,  # its greetings would stand among our lines
            console="off",
            # What it would record is the machine and the checkout that export, not those that evaluated.
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        )
        offline = self._destination is not None
        run = self._wandb.init(
            project=self._project,
            dir=self._destination,
            mode="offline" if offline else None,
            id=identity[:16],
            resume=None if offline else "allow",
            name=name,
            group=self._results.name,
            job_type=job,
            tags=["gatedeval"],
            config=facts,
            settings=settings,
        )
        try:
            yield run
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()


def _row(run: Any, row: Row) -> None:
    run.define_metric("length")
    run.define_metric("curve/*", step_metric="length")
    for length in sorted({score.length for score in row.scores if score.length}):
        curves = {f"curve/{s.benchmark}": s.value for s in row.scores if s.length == length and s.value is not None}
        if curves:
            run.log({"length": length, **curves})
    for score in row.scores:
        if score.value is None:
            continue
        run.summary[f"score/{score.name}"] = score.value
        run.summary[f"samples/{score.name}"] = score.samples
        if score.low is not None:
            run.summary[f"low/{score.name}"], run.summary[f"high/{score.name}"] = score.low, score.high
        if score.spread is not None:
            run.summary[f"sd/{score.name}"] = score.spread
        if len(score.tasks) > 1:
            for task, value in score.tasks.items():
                run.summary[f"task/{score.name}/{clean_name(task)}"] = value


def _files(wandb: Any, run: Any, results: Results) -> None:
    """The cells as a table that the web page sorts, the report as a page in it, and all files as one artifact."""
    from harness.export.text import records
    from harness.tables import cells_frame

    frame = cells_frame(results.store)
    rows = [list(record.values()) for record in records(frame)]
    artifact = wandb.Artifact(clean_name(results.name).replace("/", "_").replace(" ", "_")[:120], type="evaluation")
    with tempfile.TemporaryDirectory() as folder_:
        for file in results.write_files(Path(folder_)):
            artifact.add_file(str(file))
            if file.suffix == ".html":
                run.log({"report": wandb.Html(str(file), inject=False)})
        # Columns hold missing numbers, which a typed table refuses.
        run.log({"cells": wandb.Table(columns=list(frame.columns), data=rows, allow_mixed_types=True)})
        run.log_artifact(artifact)


def _place(run: Any) -> str:
    """Where a run is: its address, or the offline folder."""
    return str(Path(run.dir).parent) if run.offline else str(run.url)
