"""JSON Schema of what a run directory and an exported table hold; docs/formats.md.

The files beside this module are made from the types by `python -m harness.formats`; a test checks that they are
current. Validators in other languages can use them as they are.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from harness.types import GatedevalError, did_you_mean

NAMES = ("run", "sample", "table")
"""run.json, a line of samples/CELL.jsonl, and `gatedeval table --format json`."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one of `NAMES`. Raises GatedevalError for another name."""
    if name not in NAMES:
        raise GatedevalError(f"no schema {name!r}; there are {', '.join(NAMES)}{did_you_mean(name, NAMES)}")
    return json.loads((files(__package__) / f"{name}.schema.json").read_text(encoding="utf-8"))


__all__ = ["NAMES", "schema"]
