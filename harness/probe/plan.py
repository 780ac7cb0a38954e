"""What a probe of one text measures, as plain data that can be sent to a worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.probe.rows import RowSample

MAP_LIMIT = 512
"""Tokens up to which whole attention maps are kept: a map has n x n numbers."""


@dataclass(frozen=True)
class ProbePlan:
    """What to measure on one text.

    `ids`: the text's token ids. `rows`: the query positions whose attention is computed. `maps`: (layer, head) pairs,
    both from 0, whose whole attention map is kept; only for texts of at most `MAP_LIMIT` tokens. `perplexity`:
    whether to compute the log-probability of every token, which costs one output projection for each.
    """

    ids: tuple[int, ...]
    rows: RowSample
    maps: tuple[tuple[int, int], ...] = ()
    perplexity: bool = True

    def __post_init__(self) -> None:
        if self.maps and len(self.ids) > MAP_LIMIT:
            raise ValueError(f"attention maps are kept for texts of at most {MAP_LIMIT} tokens, not {len(self.ids)}")

    def to_plain(self) -> dict[str, Any]:
        """Plain data: numbers, strings, lists and mappings."""
        return {
            "ids": list(self.ids),
            "rows": self.rows.to_plain(),
            "maps": [list(pair) for pair in self.maps],
            "perplexity": self.perplexity,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ProbePlan:
        """The inverse of `to_plain`."""
        maps = tuple((layer, head) for layer, head in plain["maps"])
        return cls(tuple(plain["ids"]), RowSample.from_plain(plain["rows"]), maps, plain["perplexity"])
