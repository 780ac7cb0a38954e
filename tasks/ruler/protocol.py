"""RULER's protocol constants: the tasks in RULER's order, their settings and strings (from `protocol.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

_DATA: dict[str, Any] = json.loads((files(__package__) / "protocol.json").read_text(encoding="utf-8"))

REVISION: str = _DATA["revision"]
"""The commit of NVIDIA/RULER that is reproduced."""

FAMILIES: Mapping[str, Mapping[str, Any]] = _DATA["families"]
"""Per family: `template`, `answer_prefix`, `tokens_to_generate` and the family's own strings."""

SETTINGS: Mapping[str, Mapping[str, Any]] = _DATA["tasks"]
"""Per task: its family and parameters."""

NOISE: str = _DATA["noise"]
"""The line that fills the noise haystacks."""

TASKS: tuple[str, ...] = tuple(SETTINGS)
"""The 13 tasks in RULER's order."""

ANSWER_TOKENS: Mapping[str, int] = MappingProxyType(
    {task: FAMILIES[SETTINGS[task]["family"]]["tokens_to_generate"] for task in TASKS}
)
"""Tokens to generate, per task."""

NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        task: {"essay": ("essays", "punkt"), "squad": ("squad",), "hotpotqa": ("hotpotqa",)}.get(
            s.get("haystack") or s.get("dataset") or "", ()
        )
        for task, s in SETTINGS.items()
    }
)
"""The data sets (names of harness.data) that a task cannot do without; cwe's long list depends on the length."""
