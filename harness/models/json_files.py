"""Reading the JSON files of a checkpoint and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.types import GatedevalError


def read_object(file: Path, remedy: str = "") -> dict[str, Any]:
    """A JSON file that holds one object. `remedy`: what to do, at the end of the error.

    Raises:
        GatedevalError: the file cannot be read, is not JSON, or holds something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GatedevalError(f"{file}: not valid JSON ({error}){remedy}") from error
    if not isinstance(value, dict):
        raise GatedevalError(f"{file}: expected a JSON object, got {type(value).__name__}{remedy}")
    return value
