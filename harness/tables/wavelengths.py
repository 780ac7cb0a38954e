"""How far each rotated pair of dimensions turns under each context setting of a run: wavelengths in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from harness.store import Store
from harness.tables.arms import arms_of
from harness.tables.frames import labels


@dataclass
class Wavelengths:
    """Models that are encoded alike. `curves`: context label -> tokens per turn of every pair; `trained`: tokens."""

    models: list[str]
    trained: list[int]
    curves: dict[str, list[float]] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def beyond(self, context: str) -> int:
        """Pairs that do not turn once within the shortest trained length."""
        return sum(value > min(self.trained) for value in self.curves[context])


def wavelengths(store: Store) -> list[Wavelengths]:
    """Each kind of model with its curves, in the order of the run; empty where the run has recorded none.

    A kind with a single setting is left out: there is nothing to compare. Of arms, every checkpoint counts: those of
    one arm may have been trained at different lengths.
    """
    arms = arms_of(store)
    store = store if arms is None else arms.checkpoints
    facts: dict[str, Any] = store.manifest.get("models") or {}
    names = labels(store, "contexts")
    found: list[Wavelengths] = []
    for model in labels(store, "models"):
        rotary = (facts.get(model) or {}).get("rotary") or {}
        curves, factors, trained = {}, {}, []
        for context in (name for name in names if name in rotary):
            own = rotary[context]
            turns = [2 * math.pi / f for f in own["frequencies"] if f > 0]
            if turns:
                curves[context], factors[context] = turns, float(own.get("factor") or 1.0)
                trained.append(int(own["trained"]))
        if not curves:
            continue
        made = Wavelengths([model], sorted(set(trained)), curves, factors)
        same = next((w for w in found if (w.curves, w.factors, w.trained) == (curves, factors, made.trained)), None)
        if same is not None:
            same.models.append(model)
        else:
            found.append(made)
    return [w for w in found if len(w.curves) > 1]


def caption(found: list[Wavelengths]) -> list[str]:
    """Lines below the picture: how to read it, and how many pairs do not complete a turn."""
    lines = [
        "Wavelength: tokens in which a rotated pair of dimensions turns once. A pair whose wavelength is longer than "
        "the trained length (dashed line) was not trained at all its angles. Settings that extend the context make "
        "these pairs slower, so that a longer text stays within the angles that were trained."
    ]
    for one in found:
        who = ", ".join(one.models) + ": " if len(found) > 1 else ""
        counts = ", ".join(
            f"{context} {one.beyond(context)} of {len(turns)}" + _factor(one.factors[context])
            for context, turns in one.curves.items()
        )
        lines.append(f"{who}pairs that do not turn once within {one.trained[0]:,} tokens: {counts}.")
    return lines


def _factor(value: float) -> str:
    return "" if value == 1 else f" (factor on cos and sin {value:.4f})"
