"""MLflow: one run per row of Table 5 inside one run for the evaluation, which has the tables and the report.

Every score is a metric of its own (`score/ruler/4096`); benchmarks over length are also one curve (`curve/ruler`),
whose steps are lengths in tokens.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from harness.exchange.protocol import client, folder
from harness.exchange.results import Results, Row
from harness.types import GatedevalError, first_line

_IDENTITY = "gatedeval.identity"  # the tag by which a second export finds the first one's runs


def send(results: Results, destination: str | None, project: str) -> list[str]:
    """Log the run; `destination`: a folder (MLflow's file store) or a tracking address, by default the client's own.

    See `harness.exchange.protocol.Send`. `project`: the experiment's name.
    """
    mlflow = client("mlflow", "mlflow")
    if destination is not None and "://" not in destination:
        folder(destination)
        # MLflow 3 opens its file store only where this says that it is wanted. A folder as destination says so.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        destination = Path(destination).resolve().as_uri()
    # By itself the client waits for four minutes until it says that nobody listens at an address.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        log = _Log(mlflow.MlflowClient(tracking_uri=destination), project)
        parent = log.run(results.name, results.identity(), {"mlflow.note.content": _note(results)})
        log.params(parent, results.run_facts())
        with tempfile.TemporaryDirectory() as files:
            for file in results.write_files(Path(files)):
                log.client.log_artifact(parent, str(file))
        for row in results.rows:
            _row(log, row, log.run(row.title, results.identity(row.model, row.context), {"mlflow.parentRunId": parent}))
        for row in results.arms:
            identity = results.identity("arm", row.model, row.context)
            _row(log, row, log.run(row.title, identity, {"mlflow.parentRunId": parent}))
        log.client.set_terminated(parent)
    except mlflow.exceptions.MlflowException as error:
        where = destination or mlflow.get_tracking_uri()
        raise GatedevalError(
            f"MLflow at {where} refuses ({first_line(error):.200}); name a folder or a server's address with -o, or "
            "set MLFLOW_TRACKING_URI; a database (sqlite://...) needs the package mlflow instead of mlflow-skinny"
        ) from error
    return [f"{destination or mlflow.get_tracking_uri()}: experiment {project}, run {results.name} ({parent})"]


def _note(results: Results) -> str:
    from harness.tables import table5

    return "\n".join(f"- {line}" for line in table5(results.store).caption)


def _row(log: _Log, row: Row, run: str) -> None:
    log.params(run, row.facts)
    for score in row.scores:
        if score.value is None:
            continue
        numbers = {f"score/{score.name}": score.value, f"samples/{score.name}": float(score.samples)}
        if score.low is not None and score.high is not None:
            numbers |= {f"low/{score.name}": score.low, f"high/{score.name}": score.high}
        if score.spread is not None:
            numbers |= {f"sd/{score.name}": score.spread}
        if len(score.tasks) > 1:
            numbers |= {f"task/{score.name}/{task}": value for task, value in score.tasks.items()}
        for name, value in numbers.items():
            log.metric(run, name, value, step=0)
        if score.length:
            log.metric(run, f"curve/{score.benchmark}", score.value, step=score.length)
    log.client.set_terminated(run)


class _Log:
    """MLflow's client with one experiment, in which a second export finds the runs of the first."""

    def __init__(self, client: Any, experiment: str) -> None:
        self.client = client
        found = client.get_experiment_by_name(experiment)
        if found is not None and found.lifecycle_stage != "active":
            raise GatedevalError(
                f"the MLflow experiment {experiment!r} is deleted; restore it, or name another one with --project"
            )
        self.experiment = found.experiment_id if found is not None else client.create_experiment(experiment)

    def run(self, name: str, identity: str, tags: dict[str, str]) -> str:
        """The id of the run with this identity, made where there is none."""
        found = self.client.search_runs([self.experiment], f"tags.`{_IDENTITY}` = '{identity}'", max_results=1)
        if found:
            return found[0].info.run_id
        return self.client.create_run(self.experiment, run_name=name, tags={_IDENTITY: identity, **tags}).info.run_id

    def params(self, run: str, facts: dict[str, Any]) -> None:
        """Log facts as parameters. A parameter cannot change in MLflow, so known ones are left as they are."""
        known = self.client.get_run(run).data.params
        for name, value in facts.items():
            if name not in known:
                self.client.log_param(run, name, str(value)[:6000])

    def metric(self, run: str, name: str, value: float, *, step: int) -> None:
        """Log one value, unless it is the last one that this step has."""
        known = [m for m in self.client.get_metric_history(run, name) if m.step == step]
        if not known or known[-1].value != value:
            self.client.log_metric(run, name, value, step=step)
