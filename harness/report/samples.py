"""The sample browser's data: every score that the page has room for, and as many texts, compressed.

What a page cannot hold is left out in a stated order, and said. Texts are read for the chosen samples alone: a run of
a million samples has gigabytes of them.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.store import Store
from harness.tables.frames import ordered_cells
from harness.types import Cell, Sample

BUDGET = 4_200_000  # characters of base64 that the page spends on samples
_FOR_ROWS = 0.9  # share of it that scores may take: they go before texts
_RESPONSE, _EXCERPT = 600, 300  # characters of a text that are kept
_LEAST = 100  # characters that a sample's texts take at least
_PROBE = 20_000  # rows whose compressed size tells the others'

Row = list[Any]  # cell, id, score or None, finish (an index), prompt tokens, text (an index, or -1)


class Browser(NamedTuple):
    """`packed`: base64 of gzipped JSON; samples of the run, of them in the page, and of those with their texts."""

    packed: str
    samples: int
    rows: int
    texts: int


def browser_data(store: Store, budget: int = BUDGET) -> Browser:
    """The data of the page's sample browser, at most `budget` characters where that holds one sample.

    Samples are taken in rounds of twenty over the cells, one of each kind at a time: those on which models disagree,
    wrong ones, right ones. First the scores of as many as fit, then texts in the same order.
    """
    cells = ordered_cells(store)
    rows, kinds = _rows(store, cells)
    order = _ranked(rows, kinds)
    most = _that_fit([rows[i] for i in order[:_PROBE]], cells, int(_FOR_ROWS * budget))
    kept = sorted(order[:most].tolist())
    page = [rows[i] for i in kept]
    place = {index: i for i, index in enumerate(kept)}
    base = len(_pack(cells, page, []))
    room = (budget - base) / 0.45  # characters of text; how well they compress is seen at the first packing
    wanted = [place[i] for i in order[: min(most, int(room / _LEAST) + 1)].tolist()]
    texts = _texts(store, cells, page, wanted)
    ranked = [(i, texts[i]) for i in wanted if i in texts]
    for _ in range(2):
        chosen = _take(ranked, page, room)
        packed = _pack(cells, page, chosen)
        room *= 0.97 * (budget - base) / max(1, len(packed) - base)
    while len(packed) > budget and chosen:  # it compressed worse than the first part: drop the last tenth
        chosen = _take(ranked[: len(chosen) * 9 // 10], page, math.inf)
        packed = _pack(cells, page, chosen)
    return Browser(packed, len(rows), len(page), len(chosen))


def _rows(store: Store, cells: list[Cell]) -> tuple[list[Row], NDArray[np.int8]]:
    """Every sample's row, and its kind: 0 where models disagree, 1 not fully right, 2 right."""
    rows: list[Row] = []
    seen: dict[tuple[str, str, str, int], dict[str, Any]] = {}  # what was asked -> id -> a score, or that they differ
    for c, cell in enumerate(cells):
        columns = store.scores(cell)
        scores = [None if v != v else round(v, 4) for v in columns.scores.tolist()]
        answers = seen.setdefault((cell.context, cell.benchmark, cell.task, cell.length), {})
        facts = zip(columns.ids, scores, columns.finish.tolist(), columns.prompt_tokens.tolist(), strict=True)
        for id, score, finish, tokens in facts:
            if answers.setdefault(id, score) != score:
                answers[id] = "differ"
            rows.append([c, id, score, finish, tokens, -1])
    kinds = np.empty(len(rows), dtype=np.int8)
    for i, (c, id, score, *_) in enumerate(rows):
        cell = cells[c]
        differ = seen[cell.context, cell.benchmark, cell.task, cell.length][id] == "differ"
        kinds[i] = 0 if differ else 1 if score != 1 else 2
    return rows, kinds


def _ranked(rows: list[Row], kinds: NDArray[np.int8]) -> NDArray[np.int64]:
    """Indices of rows, most interesting first, in rounds of twenty over the cells so that none is left out."""
    cell = np.array([row[0] for row in rows], dtype=np.int64)
    within = np.lexsort((np.arange(len(rows)), kinds, cell))
    starts = np.searchsorted(cell[within], cell[within], side="left")
    rounds = np.empty(len(rows), dtype=np.int64)
    rounds[within] = (np.arange(len(rows)) - starts) // 20
    return np.lexsort((np.arange(len(rows)), kinds, rounds))


def _that_fit(probe: list[Row], cells: list[Cell], budget: int) -> int:
    """How many rows `budget` characters hold, judged by the first ones."""
    empty = len(_pack(cells, [], []))
    each = (len(_pack(cells, probe, [])) - empty) / max(1, len(probe))
    return max(1, int((budget - empty) / max(each, 1e-9)))


def _texts(store: Store, cells: list[Cell], page: list[Row], wanted: list[int]) -> dict[int, list[Any]]:
    """The texts of the wanted rows of the page, read cell by cell."""
    by_cell: dict[int, dict[str, int]] = {}
    for i in wanted:
        by_cell.setdefault(page[i][0], {})[page[i][1]] = i
    texts = {}
    for c, ids in by_cell.items():
        for sample in store.samples(cells[c]):
            if sample.id in ids:
                texts[ids[sample.id]] = _text(sample)
    return texts


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


def _take(ranked: list[tuple[int, list[Any]]], page: list[Row], room: float) -> list[list[Any]]:
    """As many texts as `room` characters hold; every row is told where its text is, or -1."""
    for row in page:
        row[5] = -1
    kept: list[list[Any]] = []
    for index, text in ranked:
        room -= len(json.dumps(text))
        if room < 0:
            break
        page[index][5] = len(kept)
        kept.append(text)
    return kept


def _pack(cells: list[Cell], rows: list[Row], texts: list[list[Any]]) -> str:
    data = {"cells": [[c.model, c.context, c.benchmark, c.task, c.length] for c in cells], "rows": rows, "texts": texts}
    raw = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()
