"""How a run's tables read its arms: the options `arms`, `steps` and `infer`, and the names that rows then have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config import TableOptions, arms
from harness.config.arms import recipe_refusal, rows_of, steps_of
from harness.store import Store
from harness.tables.arms import arms_of, by_arm, has_arms, members
from harness.tables.frames import labels
from harness.types import GatedevalError

_OPTIONS = ("arms", "steps", "infer")


def check_arms(store: Store, options: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> TableOptions:
    """The options among `options` that are about arms.

    Raises GatedevalError for those of `given` (the caller's own) that change nothing in this run, and for a claim about
    recipes that its checkpoints cannot bear.
    """
    reading = TableOptions(**{k: v for k, v in options.items() if k in _OPTIONS and v is not None})
    asked = [name for name in _OPTIONS if (given or {}).get(name) is not None]
    if arms_of(store) is not None:  # read by arm already: this was checked
        return reading
    known = members(store)
    if reading.infer == "recipe":
        if reading.arms == "off":
            raise GatedevalError(
                "infer: recipe compares arms, and arms: off takes them apart; leave one of the two out"
            )
        if refusal := recipe_refusal(known, reading.steps):
            raise GatedevalError(refusal)
        _different_weights(store, reading.steps)
    if asked and not has_arms(store):
        raise GatedevalError(
            f"--{asked[0]}: no model of this run is in an arm; give models of one recipe the same `arm`"
        )
    if "steps" in asked and not any(steps_of(known, c.arm) for c in known if c.arm):
        raise GatedevalError("--steps: no checkpoint of this run has a `step`")
    return reading


def _different_weights(store: Store, steps: str) -> None:
    """Two checkpoints with the same weights are one training, whatever their labels."""
    facts = store.manifest.get("models") or {}
    for row, own in rows_of(members(store), steps).items():
        seen: dict[str, str] = {}
        for label in own:
            fingerprint = (facts.get(label) or {}).get("fingerprint")
            if fingerprint and (first := seen.setdefault(fingerprint, label)) != label:
                raise GatedevalError(
                    f"infer: recipe needs independent trainings, and {first!r} and {label!r} of the arm {row!r} have "
                    "the same weights; keep one of them"
                )


def row_names(store: Store, reading: TableOptions) -> list[str]:
    """What `models` may name: the rows, and their checkpoints where they have rows of their own."""
    if reading.arms == "off" or arms_of(store) is not None or not has_arms(store):
        own = arms_of(store)
        below = [name for row in own.rows.values() for name in row] if own and reading.arms == "expanded" else []
        return list(dict.fromkeys([*labels(store, "models"), *below]))
    return arms.row_names(members(store), reading.arms, reading.steps)


def arm_hint(store: Store, name: str, reading: TableOptions) -> str:
    """Why `name` is no row though the run has it; nothing where the run does not have it."""
    known = members(store)
    if reading.arms == "off" and any(c.arm == name for c in known):
        return f"no model {name!r} in this run: it is an arm, and arms: off shows its checkpoints alone"
    own = next((c for c in known if c.label == name and c.arm), None)
    if own is None or reading.arms == "off":
        return ""
    if own.label not in rows_of(known, reading.steps).get(own.row, ()):
        return f"{name!r} is at step {own.step}, which no row is about; --steps all or --arms off shows it"
    return f"{name!r} is a checkpoint of the arm {own.arm!r}; --arms expanded or --arms off shows it"


def names_checkpoints(store: Store, *names: str | None) -> bool:
    """Whether any of `names` is a checkpoint of an arm, and no row: then the arms are taken apart."""
    known = members(store)
    return bool(({c.label for c in known} - {c.row for c in known}) & set(names))


def read_by_arm(store: Store, *names: str | None, infer: str | None = None) -> Store:
    """The run as its own section `table` reads it, for comparing `names`: by arm, or by checkpoint where one is named.

    `infer`: in place of the run's own, where it is not None. Raises GatedevalError where the run cannot bear it.
    """
    options = dict(store.manifest.get("config", {}).get("table") or {})
    if infer is not None:
        options["infer"] = infer
    single = names_checkpoints(store, *names)
    if single and infer == "recipe":
        raise GatedevalError("infer: recipe compares arms, and a single checkpoint is named; name two arms")
    if single:
        return store
    reading = check_arms(store, options, {"infer": infer})
    return store if reading.arms == "off" else by_arm(store, reading.steps, reading.infer)
