"""A plan, and a checkpoint, as text for people."""

from __future__ import annotations

import json
from typing import Any

from harness.benchmarks.protocol import benchmarks_of
from harness.config import ContextSetting, Model
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.hub import resolve, tokenizer_path, tokenizer_sha256
from harness.models.other_gates import limits
from harness.rope import context
from harness.run.engines import beside
from harness.run.plan import Plan
from harness.text import align, counted
from harness.types import GatedevalError

_TOGETHER = "the engines of both models run at the same time"
_IN_TURN = "the engines of both models do not fit side by side; they take turns, in rounds that are long beside a start"


def render(plan: Plan) -> str:
    """The plan as aligned columns: a line per model (in each dtype), context, benchmark and length."""
    groups: dict[tuple[str, str, str, int], list[int]] = {}
    for cell, samples in plan.cells.items():
        totals = groups.setdefault((plan.engine(cell), cell.context, cell.benchmark, cell.length), [0, 0, 0])
        for i, value in enumerate((1, samples, plan.tokens[cell])):
            totals[i] += value
    rows = [("model", "context", "benchmark", "length", "cells", "samples", "prompt tokens")]
    for (model, setting, benchmark, length), (cells, samples, tokens) in groups.items():
        at_most = "<= " if length else ""  # prompts that fill a length are bounded by it, others are counted
        rows.append((model, setting, benchmark, f"{length or ''}", str(cells), f"{samples:,}", f"{at_most}{tokens:,}"))
    total = (len(plan.cells), sum(plan.cells.values()), sum(plan.tokens.values()))
    rows.append(("total", "", "", "", str(total[0]), f"{total[1]:,}", f"{total[2]:,}"))
    lines = align(rows, right=range(3, 7), rule=True)
    lines += _rounds(plan)
    for label, planned in plan.models.items():
        checkpoint = planned.checkpoint
        limits = ", ".join(f"{name} {tokens:,}" for name, tokens in planned.max_lengths.items())
        lines.append(
            f"{label}: gate {checkpoint.gate}, {checkpoint.parameters:,} parameters; longest prompt + answer: {limits}"
        )
    lines += _other_engines(plan)
    if plan.refusals:
        lines.append(f"{counted(len(plan.refusals), 'refusal')}, see below")
    return "\n".join(lines)


def _other_engines(plan: Plan) -> list[str]:
    """A line per engine that a model has for benchmarks in another dtype than its own."""
    lines = []
    for name, planned in plan.in_dtype.items():
        mine, model = [b.name for b in plan.answered_by(name)], planned.label
        own = f", beside {model}'s own in {plan.models[model].dtype}" if plan.answered_by(model) else ""
        lines.append(f"{name}: an engine for {', '.join(dict.fromkeys(mine))}{own}")
    return lines


def _rounds(plan: Plan) -> list[str]:
    """A line per benchmark whose samples come in rounds: the numbers above are the most that it can take."""
    lines = []
    for benchmark in benchmarks_of(plan.config):
        rule = benchmark.sampling
        cells = [cell for cell in plan.cells if rule is not None and plan.benchmark(cell) is benchmark]
        if rule is None or not cells:
            continue
        first = sum(min(rule.at_least, plan.cells[cell]) for cell in cells)
        goals = [] if rule.precision is None else [f"±{rule.precision:g} points" + " per task" * (rule.per == "task")]
        if (decide := plan.config.decide) is not None:
            goals.append(f"{decide.candidate} against {decide.baseline} is decided (margin {decide.margin:g} points)")
        most = sum(plan.cells[cell] for cell in cells)
        lines.append(
            f"{benchmark.name}: samples in rounds until {', or '.join(goals)}; the first round has {first:,} samples,"
            f" and {most:,} are the most"
        )
    if plan.config.decide is not None and plan.config.cluster is None and lines:
        lines.append(f"decide: {_TOGETHER if beside(plan) is not None else _IN_TURN}")
    return lines


def describe(model: Model, *, as_json: bool = False) -> str:
    """What a checkpoint is. Raises GatedevalError with what is wrong with it."""
    directory = resolve(model)
    checkpoint = inspect(directory, model.gate_layout)
    layout, config = checkpoint.layout, checkpoint.config
    facts: dict[str, Any] = {"path": str(directory), "gate": checkpoint.gate}
    if checkpoint.evidence:
        facts["gate layout"] = checkpoint.evidence
    if layout:
        facts["heads"] = f"{layout.num_heads} query, {layout.num_kv_heads} key/value, head_dim {layout.head_dim}"
        gate = (
            f" = {layout.num_heads * layout.head_dim} query + {layout.num_heads * layout.gate_dim} gate"
            if layout.gate_dim
            else ""
        )
        facts["q_proj rows"] = f"{layout.q_rows}{gate}"
        facts["q/k norm"] = "yes" if config.get("use_qk_norm", True) else "no"
        facts["biases"] = "q, k, v, gate, o" if config.get("qkv_bias") else "none"
    facts |= {
        "layers": config.get("num_hidden_layers"),
        "hidden size": config.get("hidden_size"),
        "vocabulary": config.get("vocab_size"),
        "embeddings": "tied" if config.get("tie_word_embeddings") else "separate",
        "parameters": f"{checkpoint.parameters:,} stored as {checkpoint.dtype}"
        + (f", quantised ({checkpoint.quantisation})" if checkpoint.quantisation else ""),
        "rope": ", ".join(f"{k} {v}" for k, v in checkpoint.rope.items()) or "default",
        "longest prompt + answer": _native_length(checkpoint),
        "vLLM class": checkpoint.architecture
        + ("" if layout is None or checkpoint.architecture.startswith("Gated") else " (vLLM's own)"),
    }
    if limited := limits(config, checkpoint.tensors):
        facts["vLLM's limits"] = limited
    try:
        tokenizer = tokenizer_path(model, directory)
        facts["tokenizer"] = f"{tokenizer} (sha256 {tokenizer_sha256(tokenizer)[:16]})"
    except GatedevalError as error:
        facts["tokenizer"] = f"missing: {error}"
    facts["fingerprint"] = checkpoint.fingerprint()
    if as_json:
        return json.dumps(facts, indent=2)
    return "\n".join(align([(name, str(value)) for name, value in facts.items()]))


def _native_length(checkpoint: Checkpoint) -> str:
    """The longest prompt plus answer under the checkpoint's own setting, and where the number comes from."""
    try:
        length = context.max_length(ContextSetting(label="native"), checkpoint.config)
    except GatedevalError:
        return "unknown (config.json has no max_position_embeddings)"
    declared = checkpoint.max_position_embeddings
    source = "max_position_embeddings" if length == declared else "its own rope scaling reaches that far"
    return f"{length:,} tokens ({source})"
