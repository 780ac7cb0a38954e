"""Addresses inside the page: samples are of checkpoints, while rows, curves and maps may be of arms."""

from __future__ import annotations

from harness.store import Store
from harness.tables.arms import arms_of


def of_model(store: Store, model: str) -> dict[str, str]:
    """The filter of a row's samples: its own model; none for an arm, whose samples are its checkpoints'."""
    arms = arms_of(store)
    own = (model,) if arms is None else arms.rows.get(model, (model,))
    return {"model": own[0]} if len(own) == 1 else {}
