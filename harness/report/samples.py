"""The sample browser's data: every score, and as many texts as the page has room for, compressed."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

from harness.store import Store
from harness.tables.frames import ordered_cells
from harness.types import Sample

BUDGET = 4_200_000  # characters of base64 that the page spends on samples
_RESPONSE, _EXCERPT = 600, 300  # characters of a text that are kept


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit // 2] + " […] " + text[-limit // 2 :]


def _text(sample: Sample) -> list[Any]:
    """What the browser shows of one sample: references, response, and the prompt's ends where the run has them."""
    prompt = sample.extra.get("prompt") or {}
    ends = (
        [_cut(str(prompt.get(end) or ""), _EXCERPT) for end in ("head", "tail")]
        if isinstance(prompt, dict)
        else ["", ""]
    )
    around = [_cut(str(t), _EXCERPT) for t in (prompt.get("needles") or [])[:4]] if isinstance(prompt, dict) else []
    return [[_cut(r, _EXCERPT) for r in sample.references[:12]], _cut(sample.response, _RESPONSE), *ends, around]


def browser_data(store: Store, budget: int = BUDGET) -> tuple[str, int, int]:
    """Base64 of gzipped JSON, the number of samples in it, and of those with their texts.

    Texts are taken in rounds over the cells, one of each kind at a time: samples on which models disagree, wrong ones,
    right ones; when the room is spent, the rest have scores alone.
    """
    cells = ordered_cells(store)
    rows: list[list[Any]] = []
    heads: dict[tuple[Any, ...], set[float]] = {}
    texts: list[list[list[Any]]] = []
    for c, cell in enumerate(cells):
        own = []
        for sample in store.samples(cell):
            value = next(iter(sample.scores.values()), float("nan"))
            score = None if value != value else round(value, 4)
            key = (cell.context, cell.benchmark, cell.task, cell.length, sample.id)
            heads.setdefault(key, set()).add(-1.0 if score is None else score)
            rows.append(
                [c, sample.id, score, {"stop": 0, "length": 1}.get(sample.finish_reason, 2), sample.prompt_tokens, -1]
            )
            own.append([len(rows) - 1, key, _text(sample)])
        texts.append(own)
    ranked = _ranked(texts, rows, heads)
    base = len(_pack(cells, rows, []))
    room = (budget - base) / 0.45  # characters of text; how well they compress is seen at the first packing
    for _ in range(2):
        kept = _take(ranked, rows, room)
        packed = _pack(cells, rows, kept)
        room *= 0.97 * (budget - base) / max(1, len(packed) - base)
    while len(packed) > budget and kept:  # it compressed worse than the first part: drop the last tenth until it fits
        kept = _take(ranked[: len(kept) * 9 // 10], rows, math.inf)
        packed = _pack(cells, rows, kept)
    return packed, len(rows), len(kept)


def _ranked(
    texts: list[list[list[Any]]], rows: list[list[Any]], heads: dict[tuple[Any, ...], set[float]]
) -> list[tuple[int, list[Any]]]:
    """(row, text), most interesting first, in rounds of twenty over the cells so that none is left out."""
    ranked = []
    for own in texts:
        kinds = [(0 if len(heads[key]) > 1 else 1 if rows[row][2] != 1 else 2, row, text) for row, key, text in own]
        kinds.sort(key=lambda item: item[:2])
        ranked += [(i // 20, kind, row, text) for i, (kind, row, text) in enumerate(kinds)]
    ranked.sort(key=lambda item: item[:3])
    return [(row, text) for _, _, row, text in ranked]


def _take(ranked: list[tuple[int, list[Any]]], rows: list[list[Any]], room: float) -> list[list[Any]]:
    """As many texts as `room` characters hold; every row is told where its text is, or -1."""
    for row in rows:
        row[5] = -1
    kept: list[list[Any]] = []
    for index, text in ranked:
        room -= len(json.dumps(text))
        if room < 0:
            break
        rows[index][5] = len(kept)
        kept.append(text)
    return kept


def _pack(cells: list[Any], rows: list[list[Any]], texts: list[list[Any]]) -> str:
    data = {"cells": [[c.model, c.context, c.benchmark, c.task, c.length] for c in cells], "rows": rows, "texts": texts}
    raw = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()
