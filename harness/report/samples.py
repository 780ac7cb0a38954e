"""The sample browser's data: every score that the page has room for, and as many texts, compressed.

Where a run is too large for the page, the page says how much of it is left out. Texts are read from the run only for
the samples whose texts may fit: a run of a million samples has gigabytes of them.
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

BUDGET = 4_200_000  # base64 characters that the page spends on samples
_ROWS_SHARE = 0.9  # of the budget, at most, for rows with scores; they come before texts
_RESPONSE_LIMIT, _EXCERPT_LIMIT = 600, 300  # characters that are kept of a response, and of a reference or excerpt
_SHORTEST_TEXTS = 100  # characters of JSON: the texts of one sample are never shorter
_COMPRESSED_SHARE = 0.45  # base64 characters per character of text, before the first measurement
_MEASURED_ROWS = 20_000  # their compressed size is an estimate for all rows
_ROUND = 20  # samples of one cell that are ranked before the other cells' samples

Row = list[Any]  # cell (index), sample id, score or None, finish reason (index), prompt tokens, text (index, or -1)
Texts = list[Any]  # references, response, head and tail of the prompt, excerpts around needles


class Browser(NamedTuple):
    """The data as base64 of gzipped JSON, and the numbers of samples: in the run, in the data, with texts."""

    packed: str
    samples: int
    rows: int
    texts: int


def browser_data(store: Store, budget: int = BUDGET) -> Browser:
    """The data of the page's sample browser: at most `budget` characters, if one sample fits into them.

    Samples are ranked in rounds of twenty per cell, so that every cell has some; inside a round, samples on which the
    models disagree come first, then wrong ones, then right ones. As many scores as fit are taken in this order, then
    texts in the same order.
    """
    cells = ordered_cells(store)
    rows, kinds = _rows(store, cells)
    order = _ranking(rows, kinds)
    fit = _rows_that_fit([rows[i] for i in order[:_MEASURED_ROWS]], cells, int(_ROWS_SHARE * budget))
    kept = sorted(order[:fit].tolist())
    page = [rows[i] for i in kept]
    position = {index: i for i, index in enumerate(kept)}

    without_texts = len(_pack(cells, page, []))
    room = (budget - without_texts) / _COMPRESSED_SHARE  # characters of texts
    candidates = [position[i] for i in order[: min(fit, int(room / _SHORTEST_TEXTS) + 1)].tolist()]
    texts = _texts(store, cells, page, candidates)
    ranked = [(i, texts[i]) for i in candidates if i in texts]
    for _ in range(2):  # the second time with the measured share
        chosen = _assign_texts(ranked, page, room)
        packed = _pack(cells, page, chosen)
        room *= 0.97 * (budget - without_texts) / max(1, len(packed) - without_texts)
    while len(packed) > budget and chosen:  # the later texts compress worse than the first ones: drop a tenth
        chosen = _assign_texts(ranked[: len(chosen) * 9 // 10], page, math.inf)
        packed = _pack(cells, page, chosen)
    return Browser(packed, len(rows), len(page), len(chosen))


def _rows(store: Store, cells: list[Cell]) -> tuple[list[Row], NDArray[np.int8]]:
    """Every sample's row, and its kind: 0 if models disagree on it, 1 if it is not fully right, 2 if it is right."""
    rows: list[Row] = []
    # (context, benchmark, task, length) -> sample id -> the score of all models, or "differ"
    answers: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    for c, cell in enumerate(cells):
        columns = store.scores(cell)
        scores = [None if math.isnan(v) else round(v, 4) for v in columns.scores.tolist()]
        same = answers.setdefault((cell.context, cell.benchmark, cell.task, cell.length), {})
        facts = zip(columns.ids, scores, columns.finish.tolist(), columns.prompt_tokens.tolist(), strict=True)
        for id, score, finish, tokens in facts:
            if same.setdefault(id, score) != score:
                same[id] = "differ"
            rows.append([c, id, score, finish, tokens, -1])
    kinds = np.empty(len(rows), dtype=np.int8)
    for i, (c, id, score, *_) in enumerate(rows):
        cell = cells[c]
        differ = answers[cell.context, cell.benchmark, cell.task, cell.length][id] == "differ"
        kinds[i] = 0 if differ else 1 if score != 1 else 2
    return rows, kinds


def _ranking(rows: list[Row], kinds: NDArray[np.int8]) -> NDArray[np.int64]:
    """Indices of `rows`, the first to be shown first: by round, then by kind, then in the order of the run."""
    cell = np.array([row[0] for row in rows], dtype=np.int64)
    within = np.lexsort((np.arange(len(rows)), kinds, cell))  # by cell, then by kind
    starts = np.searchsorted(cell[within], cell[within], side="left")
    rounds = np.empty(len(rows), dtype=np.int64)
    rounds[within] = (np.arange(len(rows)) - starts) // _ROUND
    return np.lexsort((np.arange(len(rows)), kinds, rounds))


def _rows_that_fit(first: list[Row], cells: list[Cell], budget: int) -> int:
    """How many rows `budget` characters hold, estimated from the compressed size of the `first` ones; at least 1."""
    empty = len(_pack(cells, [], []))
    each = (len(_pack(cells, first, [])) - empty) / max(1, len(first))
    return max(1, int((budget - empty) / max(each, 1e-9)))


def _texts(store: Store, cells: list[Cell], page: list[Row], candidates: list[int]) -> dict[int, Texts]:
    """The texts of those rows of the page whose indices are in `candidates`, read cell by cell."""
    by_cell: dict[int, dict[str, int]] = {}
    for i in candidates:
        by_cell.setdefault(page[i][0], {})[page[i][1]] = i
    texts = {}
    for c, ids in by_cell.items():
        for sample in store.samples(cells[c]):
            if sample.id in ids:
                texts[ids[sample.id]] = _texts_of(sample)
    return texts


def _texts_of(sample: Sample) -> Texts:
    """What the browser shows of one sample; the prompt's parts are empty where the run does not have them."""
    prompt = sample.extra.get("prompt")
    prompt = prompt if isinstance(prompt, dict) else {}
    ends = [_shortened(str(prompt.get(end) or ""), _EXCERPT_LIMIT) for end in ("head", "tail")]
    needles = [_shortened(str(text), _EXCERPT_LIMIT) for text in (prompt.get("needles") or [])[:4]]
    references = [_shortened(text, _EXCERPT_LIMIT) for text in sample.references[:12]]
    return [references, _shortened(sample.response, _RESPONSE_LIMIT), *ends, needles]


def _shortened(text: str, limit: int) -> str:
    """The text with its middle left out if it is longer than `limit`."""
    return text if len(text) <= limit else text[: limit // 2] + " […] " + text[-limit // 2 :]


def _assign_texts(ranked: list[tuple[int, Texts]], page: list[Row], room: float) -> list[Texts]:
    """As many texts as `room` characters hold. Every row of the page gets the index of its text, or -1."""
    for row in page:
        row[5] = -1
    chosen: list[Texts] = []
    for index, texts in ranked:
        room -= len(json.dumps(texts))
        if room < 0:
            break
        page[index][5] = len(chosen)
        chosen.append(texts)
    return chosen


def _pack(cells: list[Cell], rows: list[Row], texts: list[Texts]) -> str:
    data = {"cells": [[c.model, c.context, c.benchmark, c.task, c.length] for c in cells], "rows": rows, "texts": texts}
    raw = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()
