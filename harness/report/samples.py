"""The sample browser's data: every score that the page has room for, and as many texts, compressed.

Where a run is too large for the page, the page says how much of it is left out. Texts are read from the run only for
the samples whose texts may fit: a run of a million samples has gigabytes of them. A question's texts are there once,
whatever the number of models that answer it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.presentation import presentation_of
from harness.report.excerpts import answer_texts, question_texts
from harness.report.pairs import PairCounts
from harness.store import Store
from harness.store.scores import EMPTY
from harness.tables.frames import labels, ordered_cells
from harness.types import Cell

BUDGET = 4_200_000  # base64 characters that the page spends on samples
_ROWS_SHARE = 0.75  # of the budget, at most, for rows with scores; they come before texts
_SHORTEST_TEXTS = 100  # characters of JSON: the texts of one question are never shorter
_COMPRESSED_SHARE = 0.45  # base64 characters per character of text, before the first measurement
_ROUND = 20  # questions of one task and length that are ranked before the other tasks' questions

_Group = tuple[str, str, int]  # benchmark, task, length


class Browser(NamedTuple):
    """The data as base64 of gzipped JSON, and the numbers of samples: in the run, in the data, with texts."""

    packed: str
    samples: int
    rows: int
    texts: int


@dataclass
class _Rows:
    """The rows of one cell that the page has, as columns."""

    cell: Cell
    ids: list[str]
    metrics: dict[str, list[float | None]]
    finish: list[int]
    tokens: list[int]
    empty: list[bool]
    prompts: list[int]  # equal where two rows have the same prompt
    questions: list[int] = field(default_factory=list)  # index of the question's texts, or -1
    answers: list[int] = field(default_factory=list)  # index of the answer, or -1

    def only(self, keep: set[str]) -> _Rows:
        """The rows whose ids are in `keep`."""
        at = [i for i, id in enumerate(self.ids) if id in keep]
        metrics = {name: [column[i] for i in at] for name, column in self.metrics.items()}
        columns = [[column[i] for i in at] for column in (self.finish, self.tokens, self.empty, self.prompts)]
        return _Rows(self.cell, [self.ids[i] for i in at], metrics, *columns)  # type: ignore[arg-type]


def browser_data(store: Store, pairs: PairCounts | None = None, budget: int = BUDGET) -> Browser:
    """The data of the page's sample browser: at most `budget` characters, if one question fits into them.

    Questions are ranked in rounds of twenty per task and length, so that every task has some; inside a round, questions
    on which the models disagree come first, then those that some model has wrong, then the others. As many scores as
    fit are taken in this order, then texts in the same order.
    """
    every = [_rows(store, cell) for cell in ordered_cells(store)]
    samples = sum(len(rows.ids) for rows in every)
    order = _ranking(every)
    extra = {"models": labels(store, "models"), "contexts": labels(store, "contexts"), "pairs": pairs or []}
    page, packed = every, _pack(every, [], [], extra)
    room = int(_ROWS_SHARE * budget)
    kept = len(order)
    while len(packed) > room and kept > 1:
        kept = max(1, int(kept * min(0.95, 0.97 * room / len(packed))))
        page = _restricted(every, order[:kept])
        packed = _pack(page, [], [], extra)
    without_texts = len(packed)
    space = (budget - without_texts) / _COMPRESSED_SHARE  # characters of texts
    candidates = order[: min(kept, int(space / _SHORTEST_TEXTS) + 1)]
    texts = _texts(store, page, candidates)
    for _ in range(2):  # the second time with the measured share
        chosen = _assign_texts(page, candidates, texts, space)
        packed = _pack(page, *chosen, extra)
        space *= 0.97 * (budget - without_texts) / max(1, len(packed) - without_texts)
    while len(packed) > budget and chosen[0]:  # the later texts compress worse than the first ones: drop a tenth
        chosen = _assign_texts(page, candidates[: len(chosen[0]) * 9 // 10], texts, math.inf)
        packed = _pack(page, *chosen, extra)
    return Browser(packed, samples, sum(len(rows.ids) for rows in page), len(chosen[1]))


def _rows(store: Store, cell: Cell) -> _Rows:
    columns = store.scores(cell)
    shown = presentation_of(cell.benchmark)
    names = list(columns.metrics) if shown.every_metric else list(columns.metrics)[:1]
    metrics = {n: [None if math.isnan(v) else round(v, 4) for v in columns.metrics[n].tolist()] for n in names}
    return _Rows(
        cell,
        list(columns.ids),
        metrics,
        columns.finish.tolist(),
        columns.prompt_tokens.tolist(),
        (columns.answers == EMPTY).tolist(),
        columns.prompts.tolist(),
    )


def _group(cell: Cell) -> _Group:
    return cell.benchmark, cell.task, cell.length


def _ranking(every: list[_Rows]) -> list[tuple[_Group, str]]:
    """Every question, the first to be shown first: by round, then by kind, then in the order of the run."""
    scores: dict[tuple[_Group, str], dict[str, list[float | None]]] = {}  # question -> context -> headline scores
    for rows in every:
        column = next(iter(rows.metrics.values()), [None] * len(rows.ids))
        for id, score in zip(rows.ids, column, strict=True):
            scores.setdefault((_group(rows.cell), id), {}).setdefault(rows.cell.context, []).append(score)
    questions = list(scores)
    kinds = np.array([_kind(scores[q]) for q in questions], dtype=np.int64)
    names = {group: i for i, group in enumerate(dict.fromkeys(group for group, _ in questions))}
    groups = np.array([names[group] for group, _ in questions], dtype=np.int64)
    return [questions[i] for i in _in_rounds(groups, kinds)]


def _kind(by_context: dict[str, list[float | None]]) -> int:
    """0 where the models of a context disagree, 1 where some answer is not fully right, else 2."""
    if any(len(set(column)) > 1 for column in by_context.values()):
        return 0
    return 1 if any(score != 1 for column in by_context.values() for score in column) else 2


def _in_rounds(groups: NDArray[np.int64], kinds: NDArray[np.int64]) -> list[int]:
    n = len(groups)
    within = np.lexsort((np.arange(n), kinds, groups))  # by group, then by kind
    starts = np.searchsorted(groups[within], groups[within], side="left")
    rounds = np.empty(n, dtype=np.int64)
    rounds[within] = (np.arange(n) - starts) // _ROUND
    order: list[int] = np.lexsort((np.arange(n), kinds, rounds)).tolist()
    return order


def _restricted(every: list[_Rows], order: list[tuple[_Group, str]]) -> list[_Rows]:
    """The rows of the questions in `order`."""
    keep: dict[_Group, set[str]] = {}
    for group, id in order:
        keep.setdefault(group, set()).add(id)
    return [rows.only(keep.get(_group(rows.cell), set())) for rows in every]


class _Found(NamedTuple):
    """A question's texts, and each row's answer to it."""

    questions: dict[int, Any]  # prompt (as `_Rows.prompts`) -> texts; models with other tokenizers may differ
    answers: list[tuple[int, int, Any]]  # number of the cell, row, texts


def _texts(store: Store, page: list[_Rows], candidates: list[tuple[_Group, str]]) -> dict[tuple[_Group, str], _Found]:
    """The texts of the candidates, read cell by cell."""
    wanted: dict[_Group, set[str]] = {}
    for group, id in candidates:
        wanted.setdefault(group, set()).add(id)
    found: dict[tuple[_Group, str], _Found] = {}
    for number, rows in enumerate(page):
        group = _group(rows.cell)
        at = {id: i for i, id in enumerate(rows.ids) if id in wanted.get(group, ())}
        if not at:
            continue
        for sample in store.samples(rows.cell):
            if (row := at.get(sample.id)) is not None:
                texts = found.setdefault((group, sample.id), _Found({}, []))
                if rows.prompts[row] not in texts.questions:
                    texts.questions[rows.prompts[row]] = question_texts(sample)
                texts.answers.append((number, row, answer_texts(sample)))
    return found


def _assign_texts(
    page: list[_Rows], candidates: list[tuple[_Group, str]], texts: dict[tuple[_Group, str], _Found], room: float
) -> tuple[list[Any], list[Any]]:
    """As many texts of questions and answers as `room` characters hold; a row gets the indices of its own, or -1."""
    for rows in page:
        rows.questions, rows.answers = [-1] * len(rows.ids), [-1] * len(rows.ids)
    questions: list[Any] = []
    answers: list[Any] = []
    for question in candidates:
        if (found := texts.get(question)) is None:
            continue
        room -= len(json.dumps([*found.questions.values(), [a for _, _, a in found.answers]]))
        if room < 0:
            break
        places = {prompt: len(questions) + i for i, prompt in enumerate(found.questions)}
        questions += found.questions.values()
        for number, row, answer in found.answers:
            page[number].questions[row] = places[page[number].prompts[row]]
            page[number].answers[row] = len(answers)
            answers.append(answer)
    return questions, answers


def _pack(page: list[_Rows], questions: list[Any], answers: list[Any], extra: dict[str, Any]) -> str:
    """The data as the page's script reads it (scripts/data.js)."""
    cells = []
    for rows in page:
        cell, n = rows.cell, len(rows.ids)
        shown = presentation_of(cell.benchmark)
        cells.append(
            {
                "key": cell.key, "model": cell.model, "context": cell.context, "benchmark": cell.benchmark,
                "task": cell.task, "length": cell.length,
                "metrics": [shown.mode(name) or name for name in rows.metrics],
                "ids": n if rows.ids == [str(i) for i in range(n)] else rows.ids,
                "scores": list(rows.metrics.values()),
                "finish": "".join(map(str, rows.finish)),
                "tokens": rows.tokens[0] if len(set(rows.tokens)) == 1 else rows.tokens,
                "empty": [i for i, empty in enumerate(rows.empty) if empty],
                "questions": rows.questions if max(rows.questions, default=-1) >= 0 else [],
                "answers": rows.answers if max(rows.answers, default=-1) >= 0 else [],
            }
        )  # fmt: skip
    data = {**extra, "cells": cells, "questions": questions, "answers": answers}
    raw = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()
