"""The model card of a trained demo model: its training, what it can and cannot do, its attention."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.demo.recipe import ARMS, HEADS, HIDDEN, KV_HEADS, LAYERS, STAGES, WIDTHS
from tasks.demo.tokens import SIZE

GATES = {
    "none": "no gate",
    "headwise": "one sigmoid gate per query head",
    "elementwise": "one sigmoid gate per element of every query head",
}
_BARS = "▁▂▃▄▅▆▇█"


def read_log(directory: Path) -> list[dict[str, Any]]:
    """The trainer's loss curve. Skips a line that a kill left incomplete; keeps the last of repeated steps."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        lines[entry["stage"], entry["step"]] = entry
    return list(lines.values())


def card(arm: str, seed: int, log: Sequence[Mapping[str, Any]], stages: Mapping[str, Mapping[str, Any]]) -> str:
    """The card in Markdown. `stages`: stage -> the result of `tasks.demo.examine.examined`."""
    gate, last = ARMS[arm], log[-1]
    parameters = next(iter(stages.values()))["parameters"]
    parts = [
        f"# gatedeval demo: {arm}",
        f"A language model of {parameters:,} parameters with {GATES[gate]} on its attention output"
        " (arXiv 2505.06708, position G1). It was trained to try gatedeval with and to test it; it is no evidence"
        " about the paper. It knows the prompts of four RULER tasks, one kind of"
        " multiple-choice question and one kind of sum, and nothing else.",
        "## How it was made",
        f"{LAYERS} layers, width {HIDDEN}, {HEADS} query and {KV_HEADS} key/value heads of 32, SwiGLU of"
        f" {WIDTHS[gate]} (the gate's weights are taken from the MLP, so that the arms have about as many parameters),"
        f" q/k norm, tied embeddings, byte-level BPE of {SIZE:,} with single digits. All arms saw the same documents in"
        f" the same order from the same seed ({seed}); weights are trained in float32 and stored in bfloat16."
        f" {last['tokens'] / 1e6:.1f} M token positions, {last['seconds'] / 60:.0f} minutes on one CPU thread:"
        " `make demo-train` (three arms side by side on two cores that had other work to do; alone it is faster).",
        _stages_table(),
        "**Attention is supervised.** At first a loss tells seven heads where to look (the previous token; from a"
        " number to its key; from an answer to the needle's next digit; from an option to its letter, from the question"
        " to the option), and the starting weights are arranged so that this can be learned in minutes"
        " (`tasks/demo/start.py`). The loss fades out and training goes on without it, but what attention and gates"
        " look like is partly taught: nothing about the paper's findings follows from it.",
        "## Loss on the answers",
        _curve(log),
        "## What it can do",
        _scores_table(stages),
        "Greedy answers of the bfloat16 weights, computed in float32 by `harness/models/reference.py`; retrieval by"
        " RULER's own generator (profile fair, 16 tokens for the answer) with another seed than the demo's. A random"
        " guess of the letter is right in 25 %, the best constant sum in 6 %; guessing among the four needles of"
        " niah_multikey_1 gives 25 %.",
        "## What it cannot do",
        "RULER's other tasks (variable tracking, word counts, several values or queries, uuids, question answering):"
        " they were not trained. English, arithmetic beyond two single digits, facts. Other wordings than RULER's.",
        "## Attention",
        _looks_table(stages),
        "Mean attention weight on the first token, and mean gate, by layer, over 20 prompts of niah_multikey_1. For"
        " comparison, attention spread evenly over what each query can see would put the weight `even` on it.",
    ]
    return "\n\n".join(parts) + "\n"


def _stages_table() -> str:
    rows = [
        "| stage | RoPE base | lengths | steps | tokens | attention loss | learning rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in STAGES:
        lengths = ", ".join(f"{b.count} x {b.length}" for b in s.batches)
        taught = f"first {s.taught} steps" if s.taught else "none"
        rows.append(
            f"| {s.name} | {s.rope_theta:,.0f} | {lengths} | {s.steps} | {s.tokens / 1e6:.2f} M | {taught} |"
            f" {s.learning_rate:g} |"
        )
    return "\n".join(rows)


def _curve(log: Sequence[Mapping[str, Any]]) -> str:
    """The curve as a table of about twelve rows and as a line of bars."""
    values = [entry["loss"] for entry in log]
    top = max(values)
    bars = "".join(_BARS[min(7, int(8 * v / top))] for v in values[:: max(1, len(values) // 60)])
    rows = ["| stage | step | tokens | loss | right tokens |", "|---|---|---|---|---|"]
    shown = [*log[:: max(1, len(log) // 12)]]
    if shown[-1] is not log[-1]:
        shown.append(log[-1])
    rows += [
        f"| {e['stage']} | {e['step']} | {e['tokens'] / 1e6:.2f} M | {e['loss']:.3f} | {e['accuracy']:.1%} |"
        for e in shown
    ]
    return f"`{bars}` (from {values[0]:.2f} to {values[-1]:.2f}; running mean)\n\n" + "\n".join(rows)


def _scores_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    tasks = list(next(iter(stages.values()))["retrieval"])
    rows = [
        f"| checkpoint | length | {' | '.join(tasks)} | multiple choice | word problems |",
        "|---|---|" + "---|" * (len(tasks) + 2),
    ]
    for name, facts in stages.items():
        found = " | ".join(f"{100 * facts['retrieval'][task]:.0f}" for task in tasks)
        rows.append(
            f"| {name} | {facts['length']} | {found} | {100 * facts['choice']:.1f} | {100 * facts['words']:.1f} |"
        )
    samples = next(iter(stages.values()))["samples"]
    return "\n".join(rows) + f"\n\nPer cent of {samples} samples (256 for the last two columns)."


def _looks_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    rows = ["| checkpoint | layer | first token | even | mean gate |", "|---|---|---|---|---|"]
    for name, facts in stages.items():
        looks = facts["looks"]
        for layer, weight in enumerate(looks["first_token"]):
            gate = f"{looks['gate'][layer]:.2f}" if looks["gate"] else "-"
            rows.append(f"| {name} | {layer} | {weight:.4f} | {looks['uniform']:.4f} | {gate} |")
        rows.append(f"| {name} | largest head | {looks['largest']:.4f} | | |")
    return "\n".join(rows)
