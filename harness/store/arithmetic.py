"""What computed an answer: device, kernels, compilation, ranks. In 16 bits it moves scores.

An engine reports it as a flat mapping (`facts["arithmetic"]`). run.json lists every one that the run has had, by a key
made of its content; each sample line names its key, so it keeps it through merges and changes of labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def key_of(facts: Mapping[str, Any]) -> str:
    """The key of an arithmetic: 12 hexadecimal digits of a hash of its content."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def differing(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """ "enforce_eager true / false, device cpu / cuda": the facts in which two differ. None: nothing was recorded."""
    if one is None or other is None:
        return "not recorded"
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return ", ".join(f"{name} {_text(one.get(name))} / {_text(other.get(name))}" for name in names)


def other_arithmetic(
    known: Mapping[str, Mapping[str, Any]], found: Mapping[str, int], present: Mapping[str, Any]
) -> str | None:
    """ "12 stored answers were computed under other arithmetic (device cpu / cuda)"; None if there are no such answers.

    `known`: the manifest's `arithmetic`. `found`: key -> number of stored answers. `present`: of the running engine.
    Answers without a record are not counted: nothing says that theirs was another one.
    """
    others = {key: n for key, n in found.items() if key and key != key_of(present)}
    if not others:
        return None
    most = max(others, key=lambda key: others[key])
    return (
        f"{sum(others.values()):,} stored answers were computed under other arithmetic"
        f" ({differing(known.get(most), present)}); new answers stand beside them, and the caption counts them"
    )


def mixed_line(known: Mapping[str, Mapping[str, Any]], found: Mapping[str, int]) -> str | None:
    """The caption's sentence about answers under other arithmetic than most of a run's; None if there are none.

    Arguments as of `other_arithmetic`. Differences that a config asks for per model, such as a dtype, count too: a
    comparison of models crosses them.
    """
    if len(found) < 2:
        return None
    most = max(found, key=lambda key: (found[key], key))
    others = sorted((key for key in found if key != most), key=lambda key: (-found[key], key))
    reasons = dict.fromkeys(differing(known.get(most), known.get(key)) for key in others)
    return (
        f"{sum(found[key] for key in others):,} of {sum(found.values()):,} answers were computed under other arithmetic"
        f" than the rest: {'; '.join(reasons)}."
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
