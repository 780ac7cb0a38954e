"""Which probes a config asks for: each model, context setting and length, and the token ids of its text."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.benchmarks.ruler import Ruler
from harness.config import ContextSetting
from harness.config.probing import ESSAYS, RULER_TEXT, TEXTS, ProbeOptions
from harness.data.files import read_text
from harness.engine.precision import running_dtype
from harness.engine.probing import check_stages
from harness.probe.plan import ProbePlan
from harness.probe.refusals import why_not
from harness.probe.rows import choose_rows
from harness.run.plan import Plan
from harness.types import Cell, GatedevalError, did_you_mean
from tasks.ruler import TASKS
from tasks.ruler.haystack import essay_text

VERSION = 1
"""Of what is measured; a change makes stored probes stale."""


@dataclass(frozen=True)
class PlannedProbe:
    """One probe: a model under a context setting, on the first `len(ids)` tokens of the text.

    `length`: as the config names it; one more than the text's tokens where the context ends there, because the engine
    predicts one token beyond the text.
    """

    model: str
    setting: ContextSetting
    length: int
    plan: ProbePlan
    maps: ProbePlan | None
    hash: str


def plan_probes(plan: Plan, options: ProbeOptions) -> list[PlannedProbe]:
    """The probes of a config, models and settings in the config's order.

    Raises:
        GatedevalError: a model cannot be measured; the text is shorter than a length; no context setting reaches one of
            the lengths, or a model's reach none of them.
    """
    found = []
    _check_models(plan)
    _check_lengths(plan, options)
    _check_maps(plan, options)
    for label, planned in plan.models.items():
        checkpoint = planned.checkpoint
        dtype = running_dtype(planned.model.dtype, checkpoint.dtype)
        fingerprint = checkpoint.fingerprint()
        of_model = []
        for setting in plan.config.contexts_of(planned.model):
            limit = planned.max_lengths[setting.label]
            rope = checkpoint.rope_under(setting)
            for length in (n for n in options.lengths if n <= limit):
                ids = _ids(plan, options.text, label, length, limit)
                rows = choose_rows(len(ids), first_query=options.first_query, exact_up_to=options.exact_up_to)
                measured = ProbePlan(tuple(ids), rows, perplexity=options.perplexity)
                maps = None
                if options.maps:
                    head = tuple(ids[: options.map_length])
                    maps = ProbePlan(head, choose_rows(len(head)), options.maps, perplexity=False)
                facts = {
                    "version": VERSION,
                    "ids": list(ids),
                    "rows": [options.first_query, options.exact_up_to],
                    "maps": [options.maps, options.map_length] if options.maps else None,
                    "perplexity": options.perplexity,
                    "model": fingerprint,
                    "dtype": dtype,
                    "rope": rope.to_plain() if rope else None,
                }
                digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
                of_model.append(PlannedProbe(label, setting, length, measured, maps, digest))
        if not of_model:
            reach = max(planned.max_lengths.values())
            raise GatedevalError(
                f"probe: no context setting of model {label!r} reaches a length of {min(options.lengths)} tokens (the"
                f" longest has {reach}); choose a smaller one in probe.lengths"
            )
        found += of_model
    return found


def _check_models(plan: Plan) -> None:
    """Refuse models that the probe cannot measure, and engines in which no process has all layers."""
    for label, planned in plan.models.items():
        if (reason := why_not(planned.checkpoint.config, planned.checkpoint.tensors)) is not None:
            raise GatedevalError(
                f"probe: model {label!r} cannot be probed: {reason}; remove it from models, or remove the probe section"
            )
    check_stages(plan.config.engine.pipeline_parallel_size)


def _check_lengths(plan: Plan, options: ProbeOptions) -> None:
    """Refuse a length that no context setting of any model reaches: it would have no row, without a word."""
    reach = max(length for planned in plan.models.values() for length in planned.max_lengths.values())
    if beyond := [length for length in options.lengths if length > reach]:
        raise GatedevalError(
            f"probe: no context setting of any model reaches a length of {beyond[0]} tokens (the longest has {reach});"
            " remove it from probe.lengths, or extend a context"
        )


def _check_maps(plan: Plan, options: ProbeOptions) -> None:
    """Refuse attention maps of layers and heads that a model does not have, as far as config.json says."""
    for label, planned in plan.models.items():
        config = planned.checkpoint.config
        for place, (what, key) in enumerate((("layer", "num_hidden_layers"), ("head", "num_attention_heads"))):
            count = config.get(key)
            for pair in options.maps:
                if isinstance(count, int) and pair[place] >= count:
                    raise GatedevalError(
                        f"probe.maps: model {label!r} has no {what} {pair[place]}: it has {count}, counted from 0"
                    )


def recorded(probes: Sequence[PlannedProbe]) -> list[dict[str, Any]]:
    """What run.json keeps of a run's probes: the labels and the content hash of each, in the order of the plan."""
    return [{"model": p.model, "context": p.setting.label, "length": p.length, "hash": p.hash} for p in probes]


def _ids(plan: Plan, text: str, label: str, length: int, limit: int) -> Sequence[int]:
    """The token ids of a probe's text: at most `length`, and one fewer where the context setting ends there."""
    tokenizer = plan.setup(label).tokenizer
    wanted = min(length, limit - 1)
    if text.startswith(RULER_TEXT):
        return _ruler_ids(plan, text.removeprefix(RULER_TEXT), label, length, limit)[:wanted]
    words, name = _text(plan, text)
    ids = _encoded(tokenizer, words)
    if len(ids) < wanted:
        raise GatedevalError(
            f"probe: {name} has {len(ids)} tokens for model {label!r}, a length of {length} needs {wanted}; choose"
            " smaller probe.lengths or a longer text"
        )
    return ids[:wanted]


@lru_cache(maxsize=8)
def _encoded(tokenizer: Any, text: str) -> Sequence[int]:
    return array("I", tokenizer.encode(text))


def _text(plan: Plan, text: str) -> tuple[str, str]:
    """The text of `probe.text`, and its name for messages."""
    if text == ESSAYS:
        file = plan.data.find("essays").path
        return essay_text(file), str(file)
    if not Path(text).is_file():
        raise GatedevalError(f"probe.text: {text!r} is no file; give {TEXTS}")
    if not (words := read_text(Path(text))):
        raise GatedevalError(f"probe.text: {text} is empty")
    return words, text


def _ruler_ids(plan: Plan, task: str, label: str, length: int, limit: int) -> Sequence[int]:
    if task not in TASKS:
        hint = did_you_mean(task, TASKS) or f"; there are {', '.join(TASKS)}"
        raise GatedevalError(f"probe.text: RULER has no task {task!r}{hint}")
    benchmark = Ruler.model_validate({"ruler": (task,), "lengths": (length,), "samples": 1})
    setup = plan.setup(label)
    cell = Cell(label, "", benchmark.name, task, length)
    try:
        request = next(iter(benchmark.requests(cell, setup, limit)))
    except GatedevalError as error:
        reason = re.split(r"[;,](?: or)? use ", str(error))[0]  # its advice is about keys that a probe does not have
        raise GatedevalError(f"probe.text: {reason}; choose larger probe.lengths, or another probe.text") from error
    assert request.prompt is not None
    return setup.tokenizer.encode(request.prompt)
