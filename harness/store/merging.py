"""Join two runs of the same benchmark into one, after checking that both were given the same prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from harness.store.arithmetic import differing
from harness.store.manifest import MANIFEST, instant
from harness.store.probes import Probes
from harness.store.rounds import Rounds
from harness.store.run import Store
from harness.store.scores import pair
from harness.types import Cell, GatedevalError


def merge(a: Path | str, b: Path | str, out: Path | str, *, prefer: Literal["first", "second"] | None = None) -> Path:
    """Join two runs of the same benchmark (other models, another machine) into a new run at `out`.

    Wherever both ran a benchmark's task at a length, common samples must have the same prompt; else nothing is written.
    A model label in both must be the same weights; a context label the same setting. `prefer`: whose answers are taken
    where both runs have an answer to the same sample of the same model and the two differ.

    Raises:
        GatedevalError: one of these does not hold, answers differ and `prefer` is None, the two are one run, or they
            have no task in common.
    """
    left, right, out = Store.read(Path(a)), Store.read(Path(b)), Path(out)
    if left.path.resolve() == right.path.resolve():
        raise GatedevalError(f"{left.path} cannot be merged with itself; name two runs")
    if (out / MANIFEST).exists():
        raise GatedevalError(f"there is a run at {out} already; give another name")
    _same_labels(left, right)
    _same_arms(left, right)
    _same_prompts(left, right)
    if prefer is None:
        _same_answers(left, right)
    cells: dict[Cell, int | None] = dict(left.cells)
    for cell, planned in right.cells.items():
        cells[cell] = planned if cell not in cells else _larger(cells[cell], planned)
    with Store.open(out, _merged_manifest(left, right), cells=cells) as store:
        for cell in cells:
            written: set[str] = set()
            for run in (right, left) if prefer == "second" else (left, right):
                for sample in run.samples(cell) if cell in run.cells else ():  # the first answer of an id is kept
                    if sample.id not in written:
                        written.add(sample.id)
                        store.append(cell, sample)
        for run in (left, right):
            for key, error in run.failures.items():
                store.failures.setdefault(key, error)
        _copy_probes(left, right, store)
        store.finish()
    return out


def _copy_probes(left: Store, right: Store, target: Store) -> None:
    """Both runs' probes; where both have one of a model, context and length, the left run's counts."""
    planned: dict[tuple[Any, ...], dict[str, Any]] = {}
    probes = Probes(target.path)
    for run in (left, right):
        source = Probes(run.path)
        for record in source.records(run.manifest.get("probes")):
            key = {name: record[name] for name in ("model", "context", "length", "hash")}
            if planned.setdefault(tuple(key.values())[:3], key) is key and key["hash"] not in probes.hashes():
                probes.add(record, source.arrays(record))
    if planned:
        target.update_manifest(probes=list(planned.values()))


def _larger(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _entries(store: Store, what: str) -> dict[str, Mapping[str, Any]]:
    return {entry["label"]: entry for entry in store.manifest.get("config", {}).get(what) or []}


def _same_labels(left: Store, right: Store) -> None:
    """A label that both runs use must mean the same thing in both."""
    contexts = _entries(left, "contexts"), _entries(right, "contexts")
    for label in contexts[0].keys() & contexts[1].keys():
        if contexts[0][label] != contexts[1][label]:
            raise GatedevalError(
                f"the context {label!r} is another setting in {right.path} than in {left.path}; "
                "give one of them another label and run it again"
            )
    facts = left.manifest.get("models") or {}, right.manifest.get("models") or {}
    for label in {c.model for c in left.cells} & {c.model for c in right.cells}:
        prints = [(f.get(label) or {}).get("fingerprint") for f in facts]
        if prints[0] != prints[1] or prints[0] is None:
            raise GatedevalError(
                f"both runs have a model {label!r}, with other weights (fingerprints {prints[0]} and "
                f"{prints[1]}); give one of them another label and run it again"
            )


def _same_arms(left: Store, right: Store) -> None:
    """A checkpoint has one arm and one step, and no arm has the name of a model that is not in it."""
    sides = _entries(left, "models"), _entries(right, "models")
    for label in (label for label in sides[0] if label in sides[1]):
        places = [(entries[label].get("arm"), entries[label].get("step")) for entries in sides]
        if places[0] != places[1] and (None, None) not in places:
            raise GatedevalError(
                f"the model {label!r} is in the arm {places[0][0]!r} at step {places[0][1]} in {left.path}, and in "
                f"{places[1][0]!r} at step {places[1][1]} in {right.path}; run one of the two configs again with the "
                "other's arm and step (no sample is asked again)"
            )
    joined = _joined_models(left, right)
    stepped = {entry["arm"]: entry.get("step") is not None for entry in joined if entry.get("arm")}
    for entry in joined:
        arm, label = entry.get("arm"), entry["label"]
        if arm and any(other["label"] == arm and other.get("arm") != arm for other in joined):
            raise GatedevalError(
                f"{arm!r} is the arm of {label!r} in one run, and the label of another model in the other; run one of "
                "the two configs again under another name (no sample is asked again)"
            )
        if arm and stepped[arm] != (entry.get("step") is not None):
            raise GatedevalError(
                f"some checkpoints of the arm {arm!r} have a step and {label!r} has none; run its config again with "
                "`step` for all or for none (no sample is asked again)"
            )


def _joined_models(left: Store, right: Store) -> list[dict[str, Any]]:
    """The models of both runs in their order; of one that both have, the left entry with the arm that either gives."""
    first, second = _entries(left, "models"), _entries(right, "models")
    joined = []
    for label in dict.fromkeys([*first, *second]):
        places = [
            {k: e[label][k] for k in ("arm", "step") if e.get(label, {}).get(k) is not None} for e in (second, first)
        ]
        joined.append({**second.get(label, {}), **first.get(label, {}), **places[0], **places[1]})
    return joined


def _same_prompts(left: Store, right: Store) -> None:
    """Common samples of common tasks must have the same prompt, whichever models and contexts answered them."""
    by_task: dict[tuple[str, str, int], Cell] = {}
    for cell in left.cells:
        by_task.setdefault((cell.benchmark, cell.task, cell.length), cell)
    common = 0
    for cell in right.cells:
        other = by_task.get((cell.benchmark, cell.task, cell.length))
        if other is None:
            continue
        pairing = pair(left.scores(other), right.scores(cell))
        common += len(pairing.left)
        if pairing.differing:
            at = f" at {cell.length}" if cell.length else ""
            raise GatedevalError(
                f"{left.path} and {right.path} asked different things: {cell.task}{at}, {len(pairing.differing)} of "
                f"{len(pairing.left)} common samples, the first is {pairing.differing[0]!r}; they can be merged when "
                "run with the same seed, profile, shots and tokenizer"
            )
    if not common:
        raise GatedevalError(f"{left.path} and {right.path} have no sample in common: there is nothing to compare")


def _same_answers(left: Store, right: Store) -> None:
    """A model's answers to a sample must be equal in both runs: else the joined run has the scores of neither."""
    for cell in left.cells.keys() & right.cells.keys():
        answers = {sample.id: sample for sample in left.samples(cell)}
        both = [(answers[sample.id], sample) for sample in right.samples(cell) if sample.id in answers]
        differing = [y.id for x, y in both if (x.response, x.scores) != (y.response, y.scores)]
        if differing:
            raise GatedevalError(
                f"{left.path} and {right.path} have different answers of {cell.model} to the same samples: {cell.task},"
                f" {len(differing)} of {len(both)}, the first is {differing[0]!r} (other engine options, or another"
                " machine?); choose one run's answers with --prefer first or --prefer second"
            )


def _merged_manifest(left: Store, right: Store) -> dict[str, Any]:
    """One manifest of two: models and contexts joined, where facts differ both are kept, and a caption line says so."""
    first, second = left.manifest, right.manifest
    config = dict(first.get("config") or {})
    order = dict.fromkeys([*_entries(left, "contexts"), *_entries(right, "contexts")])
    contexts = {**_entries(right, "contexts"), **_entries(left, "contexts")}
    config |= {"models": _joined_models(left, right), "contexts": [contexts[label] for label in order]}
    config["benchmarks"] = [*(config.get("benchmarks") or [])]
    config["benchmarks"] += [
        b for b in second.get("config", {}).get("benchmarks") or [] if b not in config["benchmarks"]
    ]
    caption = list(dict.fromkeys([*(first.get("caption") or []), *(second.get("caption") or [])]))
    facts = [fact for fact in ("gatedeval", "seed", "hardware", "versions") if first.get(fact) != second.get(fact)]
    caption += [f"merged from two runs whose {f} differs: {_brief(first.get(f), second.get(f))}" for f in facts]
    caption += [line] if (line := _other_arithmetic(left, right)) else []
    decoding = {**(second.get("decoding") or {}), **(first.get("decoding") or {})}
    decoding |= {key: "mixed" for key, value in (second.get("decoding") or {}).items() if decoding[key] != value}
    return {
        **{fact: value for fact, value in first.items() if fact not in ("name", "end", "state", "probes")},
        "arithmetic": {**(second.get("arithmetic") or {}), **(first.get("arithmetic") or {})},
        "decoding": decoding,
        "start": min(filter(None, (first.get("start"), second.get("start"))), key=instant, default=None),
        "config": config,
        "models": {**(second.get("models") or {}), **(first.get("models") or {})},
        "options": {**(second.get("options") or {}), **(first.get("options") or {})},
        "caption": caption,
        "merged": [
            {
                "path": s.path.name,
                "start": s.manifest.get("start"),
                "end": s.manifest.get("end"),
                **{k: s.manifest.get(k) for k in ("seed", "versions", "hardware", "git")},
            }
            for s in (left, right)
        ],
        "failures": {},
        "sessions": [],
        **({"rounds": rounds} if (rounds := _merged_rounds(left, right)) else {}),
    }


def _merged_rounds(left: Store, right: Store) -> list[dict[str, Any]]:
    """The rounds of both runs; where both have samples of a number, those of the run with more samples of it.

    Samples of one cell come in one order, so the joined run has the larger set, and with it that run's interval: that
    of a plain count, which has no rounds, too.
    """
    chosen: list[Rounds] = []
    for run, other in ((left, right), (right, left)):
        for entry in dict.fromkeys(found for cell in run.cells if (found := run.rounds(cell)) is not None):
            counted = [c for c in entry.all_cells if c in other.cells and other.rounds(c) is None]
            if counted and _drawn(entry, counted) < sum(len(other.scores(c).ids) for c in counted):
                continue
            rivals = [(e, set(e.all_cells) & set(entry.all_cells)) for e in chosen]
            rivals = [(e, common) for e, common in rivals if common]
            if all(_drawn(e, common) < _drawn(entry, common) for e, common in rivals):
                chosen = [*(e for e in chosen if e not in [rival for rival, _ in rivals]), entry]
    return [entry.to_dict() for entry in chosen]


def _drawn(entry: Rounds, cells: Iterable[Cell]) -> int:
    """Samples of `cells` after the entry's last round."""
    counts = entry.counts
    return sum(counts[cell] for cell in cells)


def _other_arithmetic(left: Store, right: Store) -> str | None:
    """The caption line of two runs whose answers were mostly computed under different arithmetic; None if they agree.

    The joined run's own caption then counts the mixed answers (`harness.store.arithmetic.mixed_line`).
    """
    most = []
    for run in (left, right):
        found = run.arithmetic()
        most.append((run.manifest.get("arithmetic") or {}).get(max(found, key=lambda key: found[key], default="")))
    if most[0] == most[1] or None in most:
        return None
    return f"merged from two runs whose arithmetic differs: {differing(*most)}"


def _brief(a: Any, b: Any) -> str:
    """Two values; of two mappings, only the entries that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return ", ".join(f"{k} {a.get(k)} / {b.get(k)}" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k))
    return f"{a} / {b}"
