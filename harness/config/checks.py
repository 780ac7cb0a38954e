"""What must hold between the entries of a config. Each check notes problems with their places in the source."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.arms import Checkpoint, recipe_refusal, row_names
from harness.config.entries import subject
from harness.config.sampling import Decide, Sampling
from harness.config.table import TableOptions, named_twice
from harness.config.vocabulary import BenchmarkEntry, ContextSetting, Model
from harness.config.yaml_text import Loc, Source
from harness.types import did_you_mean


def distinct_labels(s: Source, key: str) -> None:
    """Labels name rows of tables. Read from the raw entries: one with another mistake still takes its label."""
    entries, first = s.data.get(key), dict[str, int]()
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        label = entry.get("label") if isinstance(entry, dict) else None
        if isinstance(label, str) and first.setdefault(label, i) != i:
            line = s.place((key, first[label], "label"))
            s.problem(
                (key, i, "label"), f"{key}: label {label!r} is already used at {line}; labels name rows of tables"
            )


def known_contexts(
    s: Source, entries: Sequence[tuple[Loc, Model | BenchmarkEntry]], contexts: list[tuple[Loc, ContextSetting]]
) -> None:
    """A model's or a benchmark's own list of contexts names some that there are."""
    if len(contexts) < len(s.data.get("contexts") or [1]):
        return  # one of them is complained about already
    known = [c.label for _, c in contexts]
    for loc, m in entries:
        for i, label in enumerate(m.contexts or ()):
            if label not in known:
                hint = did_you_mean(label, known) or f"; there are {', '.join(map(repr, known))}"
                s.problem((*loc, "contexts", i), f"{subject(s, (*loc, 'contexts'))}: no context {label!r}{hint}")


def distinct_cells(s: Source, benchmarks: list[tuple[Loc, BenchmarkEntry]]) -> None:
    """No cell is asked for twice, and no entry contradicts another one."""
    seen: dict[tuple[str, str, int], tuple[Loc, BenchmarkEntry]] = {}
    for i, (loc, b) in enumerate(benchmarks):
        if conflict := next(filter(None, (b.conflict(other) for _, other in benchmarks[:i])), None):
            s.problem(loc, f"benchmarks: {conflict}")
        cells = [(b.name, task, length) for task, length in b.task_lengths()]
        twice = next((c for c in cells if c in seen), None)
        if twice:
            what = f"{twice[1]} at {twice[2]}" if twice[2] else twice[1]
            first, other = seen[twice]
            also = (
                "" if b.dtype == other.dtype else " (for both dtypes: name each model twice, with a `dtype` of its own)"
            )
            problem = f"benchmarks: {twice[0]} {what} is asked for twice (also at {s.place(first)}); keep one{also}"
            s.problem(loc, problem)
        seen.update(dict.fromkeys(cells, (loc, b)))


def table_names(
    s: Source,
    table: TableOptions,
    models: list[tuple[Loc, Model]],
    contexts: list[tuple[Loc, ContextSetting]],
    benchmarks: list[tuple[Loc, BenchmarkEntry]],
    probed: Sequence[int] = (),
) -> None:
    """The section `table` names models, contexts, benchmarks and lengths that the config has.

    `probed`: the lengths of its probes.
    """
    known: dict[str, list[str]] = {
        "models": row_names([Checkpoint(m.label, m.arm, m.step) for _, m in models], table.arms, table.steps),
        "contexts": [c.label for _, c in contexts],
        "benchmarks": list(dict.fromkeys(b.name for _, b in benchmarks)),
    }
    made = {"models": len(models), "contexts": len(contexts), "benchmarks": len(benchmarks)}
    whole = all(count >= len(s.data.get(key) or []) for key, count in made.items())
    if not whole:
        return  # one of them is complained about already
    for key, names in known.items():
        for i, name in enumerate(getattr(table, key) or ()):
            if name not in names:
                there = f"; there are {', '.join(map(repr, names))}"
                hidden = key == "models" and any(name in (m.label, m.arm) for _, m in models)
                how = f" has a row with arms: {table.arms}, steps: {table.steps}{there}" if hidden else ""
                hint = how or did_you_mean(name, names) or there
                s.problem(("table", key, i), f"table.{key}: no {key.removesuffix('s')} {name!r}{hint}")
    _renames(
        s,
        table,
        list(dict.fromkeys(n for _, m in models for n in (m.label, m.arm) if n)),
        list(dict.fromkeys(known["contexts"])),
    )
    lengths = {length for _, b in benchmarks for _, length in b.task_lengths()} if table.lengths else set()
    what = "no benchmark and no probe has" if probed else "no benchmark has"
    for i, length in enumerate(table.lengths or ()):
        if length not in lengths and length not in probed:
            s.problem(("table", "lengths", i), f"table.lengths: {what} the length {length}")


def _renames(s: Source, table: TableOptions, models: Sequence[str], contexts: Sequence[str]) -> None:
    """`rename` names models, arms and contexts that there are, and gives no two of them one name."""
    names = dict(table.rename)
    every = list(dict.fromkeys([*models, *contexts]))
    for old in names:
        if old not in every:
            hint = did_you_mean(old, every) or f"; there are {', '.join(map(repr, every))}"
            s.problem(("table", "rename"), f"table.rename: no model or context {old!r}{hint}")
    for labels in (models, contexts):
        if twice := named_twice(labels, names):
            s.problem(("table", "rename"), f"table.rename: two would be called {twice!r}; choose another name")


def arms_fit(s: Source, models: list[tuple[Loc, Model]], table: TableOptions | None) -> None:
    """Arms are of different checkpoints under names of their own, with a step for all or for none of them."""
    if len(models) < len(s.data.get("models") or []):
        return  # one of them is complained about already
    labels = {m.label: m.arm for _, m in models}
    weights: dict[tuple[str | None, ...], str] = {}
    for loc, m in models:
        if m.arm is None:
            if m.step is not None:
                problem = "step: a training step is a point on an arm's curve; add arm: NAME, or drop it"
                s.problem((*loc, "step"), f"{subject(s, loc)}, {problem}")
            continue
        where, arm = subject(s, (*loc, "arm")), [other for _, other in models if other.arm == m.arm]
        if m.arm in labels and (labels[m.arm] != m.arm or len(arm) > 1):
            s.problem((*loc, "arm"), f"{where}: {m.arm!r} is also the label of a model; both name rows of tables")
        first = weights.setdefault((m.arm, m.path, m.subfolder, m.revision), m.label)
        if first != m.label:
            same = f"{m.label!r} is the same checkpoint as {first!r}; an arm has different ones"
            s.problem((*loc, "arm"), f"{where}: {same}")
        if m.step is None and (stepped := next((other for other in arm if other.step is not None), None)):
            message = f"{stepped.label!r} of the arm {m.arm!r} has a step; give {m.label!r} one too"
            s.problem(loc, f"{subject(s, loc)}: {message}")
    if table is not None and table.infer == "recipe" and table.arms == "off":
        both = "recipe compares arms, and arms: off takes them apart; leave one of the two out"
        s.problem(("table", "infer"), f"table.infer: {both}")
    elif table is not None and table.infer == "recipe":
        found = [Checkpoint(m.label, m.arm, m.step) for _, m in models]
        if refusal := recipe_refusal(found, table.steps):
            s.problem(("table", "infer"), f"table.{refusal}")


def lengths_fit(
    s: Source, contexts: list[ContextSetting], expected: int, benchmarks: list[tuple[Loc, BenchmarkEntry]]
) -> None:
    """A length that no context can hold would give a column of dashes. Native limits are the plan's to check."""
    limits = {c.label: c.max_length or c.declared_reach for c in contexts}
    if len(contexts) < expected or not limits or None in limits.values():
        return
    best = max(limits, key=lambda label: limits[label] or 0)
    for loc, b in benchmarks:
        over = [n for n in dict.fromkeys(n for _, n in b.task_lengths()) if n > (limits[best] or 0)]
        if over:
            s.problem(
                (*loc, "lengths"),
                f"{subject(s, (*loc, 'lengths'))}: {', '.join(map(str, over))} is above max_length of every context "
                f"(the largest is {best!r}, {limits[best]}); raise max_length or drop the length",
            )


def sampling_rules(
    s: Source, decide: Decide | None, models: list[tuple[Loc, Model]], benchmarks: list[tuple[Loc, BenchmarkEntry]]
) -> None:
    """`decide` names two models of the config and has a benchmark to decide on; every rule of `samples` has an end."""
    labels = [m.label for _, m in models]
    unknown = [key for key in ("candidate", "baseline") if decide and getattr(decide, key) not in labels]
    if unknown and len(labels) == len(s.data.get("models") or []):
        for key in unknown:
            name = getattr(decide, key)
            hint = did_you_mean(name, labels) or f"; there are {', '.join(map(repr, labels))}"
            s.problem(("decide", key), f"decide.{key}: no model {name!r}{hint}")
        return
    rules = [(loc, b, b.sampling) for loc, b in benchmarks if b.sampling is not None]
    if decide and not rules and len(benchmarks) == len(s.data.get("benchmarks") or []):
        s.problem(
            ("decide",),
            "decide needs a benchmark whose samples may grow: write samples: {at_least: 50, at_most: 500} in its entry",
            key=True,
        )
    others = [label for label in labels if decide and label not in (decide.candidate, decide.baseline)]
    for loc, b, rule in rules:
        if rule.precision is None and (decide is None or others):
            for_whom = f" for {', '.join(map(repr, others))}, which decide does not name" if others else ""
            s.problem(loc, f"benchmarks {b.name!r}, samples: {_endless(rule)}{for_whom}; add precision, in points")


def _endless(rule: Sampling) -> str:
    return f"at_least {rule.at_least} without a precision says nothing about when to stop"
