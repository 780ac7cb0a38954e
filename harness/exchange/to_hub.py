"""Model cards of the Hugging Face hub: one README.md per model, whose front matter is a `model-index` with its scores.

Nothing is sent anywhere. Add the front matter to the card of the model's repository, or use
`huggingface_hub.metadata_update`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.exchange.protocol import folder
from harness.exchange.results import Results, Row, Score
from harness.store.files import write_atomic
from harness.types import GatedevalError


def send(results: Results, destination: str | None, project: str) -> list[str]:
    """Write DESTINATION/MODEL/README.md for every model of the run; see `harness.exchange.protocol.Send`."""
    import huggingface_hub as hub

    target = folder(destination if destination is not None else results.store.path / "hub")
    written: dict[Path, str] = {}
    for model in dict.fromkeys(row.model for row in results.rows):
        found = [
            hub.EvalResult(**_result(results, row, score))
            for row in results.rows
            if row.model == model
            for score in row.scores
            if score.value is not None
        ]
        if not found:
            continue
        name = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
        file = target / name / "README.md"
        # Some file systems ignore case.
        if (other := next((m for f, m in written.items() if str(f).lower() == str(file).lower()), None)) is not None:
            raise GatedevalError(f"the models {other!r} and {model!r} would share the card {file}; rename one of them")
        data = hub.ModelCardData(model_name=model, eval_results=found, tags=["gatedeval"])
        folder(file.parent)
        written[file] = model
        write_atomic(file, f"---\n{data.to_yaml()}\n---\n\n{_text(results, model)}")
    return [str(file) for file in written]


def _result(results: Results, row: Row, score: Score) -> dict[str, Any]:
    """One score as the arguments of `huggingface_hub.EvalResult`; its value has two decimals, as in our tables."""
    assert score.value is not None
    interval = None if score.low is None or score.high is None else [round(score.low, 2), round(score.high, 2)]
    metric, _, extraction = (results.metric_of(score) or "").partition(",")
    facts = {
        "tasks": sorted({cell.task for cell in score.cells}),
        "length": score.length or None,
        "samples": score.samples,
        "seed": results.manifest.get("seed"),
        "context": {k.removeprefix("context."): v for k, v in row.facts.items() if k.startswith("context.")},
    }
    # The hub groups results by data set and configuration: scores of two lengths must differ in one of them.
    at = f", {score.length} tokens" if score.length else ""
    return {
        "task_type": "text-generation",
        "task_name": "Text generation",
        "dataset_type": score.benchmark,
        "dataset_name": f"{score.title} ({row.context})",
        "dataset_config": row.context + at,
        "dataset_args": {k: v for k, v in facts.items() if v is not None},
        "metric_type": metric or "score",
        "metric_config": extraction or None,
        "metric_name": score.title,
        "metric_args": None if interval is None else {"interval_95": interval},
        "metric_value": round(score.value, 2),
    }


def _text(results: Results, model: str) -> str:
    """The card's body: the model's part of Table 5, and how it was measured."""
    from harness.tables import table5

    lines = [f"# {model}", "", f"Evaluated by gatedeval in the run `{results.name}`; scores are percentages.", ""]
    lines += ["| context | benchmark | score | 95% interval | samples |", "|---|---|---|---|---|"]
    for row in (row for row in results.rows if row.model == model):
        for s in (s for s in row.scores if s.value is not None):
            interval = "" if s.low is None else f"{s.low:.2f} to {s.high:.2f}"
            context, title = row.context.replace("|", "\\|"), s.title.replace("|", "\\|")
            lines.append(f"| {context} | {title} | {s.value:.2f} | {interval} | {s.samples} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in table5(results.store).caption)]) + "\n"
