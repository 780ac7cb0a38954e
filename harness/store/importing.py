"""Import RULER predictions of another harness as a run: tables and tests then work on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.store.manifest import MANIFEST
from harness.store.run import Store
from harness.types import Cell, GatedevalError, Sample


def import_predictions(
    file: Path | str,
    out: Path | str,
    *,
    model: str = "imported",
    context: str = "as given",
    length: int = 0,
    task: str | None = None,
) -> Path:
    """Score a prediction file (JSON lines or CSV, gzipped or not) and write a run to `out`; returns its path.

    The file's columns are task, references, prediction (and the names other harnesses use for them). `length`:
    RULER's length in tokens, which such files do not have; 0 where it is not known. `task`: for files without a task
    column. Samples are numbered per task in file order; token counts are not known and recorded as 0.

    Raises:
        GatedevalError: a row that cannot be read (naming file and row), a file without rows, a negative length, or
            another run at `out` already. (Importing a file a second time is no error, and changes nothing.)
    """
    from tasks.ruler.scoring import read_predictions, scores

    file = Path(file)
    if length < 0:
        raise GatedevalError(f"length {length}: RULER's length is a number of tokens; 0 says that it is not known")
    if not file.is_file():
        raise GatedevalError(f"no file {file}; give a prediction file (JSON lines or CSV)")
    data = {file.name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
    samples: dict[Cell, list[Sample]] = {}
    for row in read_predictions(file, task):
        cell = Cell(model, context, "ruler", row.task, length)
        there = samples.setdefault(cell, [])
        question = json.dumps([row.task, len(there), row.references], ensure_ascii=False)
        facts: dict[str, Any] = {"prompt_hash": hashlib.sha256(question.encode()).hexdigest()[:32]}
        there.append(
            Sample(
                id=str(len(there)),
                hash=hashlib.sha256((question + row.prediction).encode()).hexdigest()[:32],
                prompt_tokens=0,
                references=row.references,
                response=row.prediction,
                response_tokens=0,
                finish_reason="stop",
                scores=scores(row.task, row.references, row.prediction),
                extra=facts,
            )
        )
    if not samples:
        raise GatedevalError(f"{file}: it has no rows, so there is nothing to import")
    manifest = {
        "config": {
            "models": [{"label": model, "path": file.name}],
            "contexts": [{"label": context, "max_length": None}],
            "benchmarks": [{"ruler": sorted({c.task for c in samples}), "lengths": [length]}],
        },
        "caption": [f"imported predictions: {file.name}; token counts are not known"],
        "data": data,
    }
    if (Path(out) / MANIFEST).exists():
        there_already = Store.read(Path(out))
        if there_already.manifest.get("data") != data or set(there_already.cells) != set(samples):
            raise GatedevalError(f"there is another run at {out} already; give another name")
    write_samples(Path(out), manifest, samples)
    return Path(out)


def write_samples(out: Path, manifest: dict[str, Any], samples: Mapping[Cell, Sequence[Sample]]) -> None:
    """A finished run of `samples` at `out`. Where one is there already, only missing or changed ones are written."""
    with Store.open(out, manifest, cells={cell: len(rows) for cell, rows in samples.items()}) as store:
        for cell, rows in samples.items():
            store.expect(cell, {s.id: s.hash for s in rows})
            done = store.done(cell)
            for s in rows:
                if done.get(s.id) != s.hash:
                    store.append(cell, s)
        store.finish()
