"""Thoughts in answers, tags as special tokens, and the date that a chat template prints."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from harness.benchmarks.protocol import Setup
from harness.config import ContextSetting, Model, from_dict
from harness.data.folder import DataFolder
from harness.engine.requests import Completion, Prompt, Question, SampleRequest
from harness.models.thinking import Thinking
from harness.models.tokenizer import Tokenizer
from harness.run import plan as planning
from harness.run.answers import answer_text, with_tags
from harness.run.plan import build
from harness.run.progress import Progress
from harness.run.runner import run
from harness.run.scoring import scored_sample
from harness.store import Store
from harness.tables import table5
from harness.tables.answers import answer_counts
from harness.types import Cell, GatedevalError
from tests.checkpoints import tokenizers as odd
from tests.support.odd_plans import config, requests_of

TAGS = ("<think>", "</think>")


@pytest.fixture(scope="module", params=[True, False], ids=["special", "not special"])
def tagged(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that has the tags as tokens of their own."""
    folder = odd.roomy(tiny / "baseline", tmp_path_factory.mktemp("tags") / "m")
    odd.added(*TAGS, special=request.param)(folder)
    return Tokenizer(folder)


@pytest.mark.parametrize(
    ("response", "opened", "scored"),
    [
        ("<think>was it 41?</think>\n42", False, "42"),
        ("was it 41?</think>\n42", True, "42"),
        ("was it 41? Then", True, ""),
        ("<think>was it 41? Then", False, ""),
        ("42", False, "42"),
        ("<think>a</think> 41 <think>b</think> 42\nQuestion: 43", False, "42\n"),
    ],
)
def test_the_text_after_the_thought_is_scored(tagged: Tokenizer, response: str, opened: bool, scored: str) -> None:
    """Also where the tags are special tokens, which an engine leaves out of the text."""
    ids = tagged.encode(response)
    text = tagged.decode(ids)  # as an engine returns it
    shown = with_tags(text, ids, tagged, TAGS)
    assert shown == response
    assert answer_text(shown, Thinking(True), opened, ("Question:",), "q") == scored


def test_a_special_tag_in_a_run_without_thinking_is_found(tagged: Tokenizer) -> None:
    ids = tagged.encode("<think>hm</think>42")
    with pytest.raises(GatedevalError, match="holds <think>"):
        answer_text(with_tags(tagged.decode(ids), ids, tagged, TAGS), Thinking(), False, (), "q")


def test_a_thought_that_is_never_closed_counts_as_an_empty_answer(tagged: Tokenizer, tmp_path: Path) -> None:
    """It scored 0, ended by itself, and no line beneath the table said that nothing had been scored."""
    setup = Setup(tagged, DataFolder(tmp_path), 42, thinking=Thinking(True, 64))
    sample = SampleRequest(id="0", label="q", prompt="p", score=lambda answer, text: {"score": float(text == "30")})
    cell = Cell("m", "native", "ruler", "vt", 4096)
    with Store.open(tmp_path / "r", {}, cells={cell: 40}) as store:
        for i in range(40):
            ids = tagged.encode("<think>was it 41? Then" if i < 20 else f"<think>a</think>{i}")
            answer = Completion("k", tagged.decode(ids), len(ids), "stop", 0.0, tuple(ids))
            found = scored_sample(sample, answer, setup)
            store.append(cell, dataclasses.replace(found, id=str(i), hash=str(i)))
        assert answer_counts(store.scores(cell)).empty == 20
        assert store.scores(cell).mean() == 1 / 40
        assert any("Empty answers" in line and "50%" in line for line in table5(store).caption)


def test_tags_are_the_configs(tiny: Path, shared: Path, tmp_path: Path) -> None:
    """A model that writes <reason>...</reason> and a template that opens it."""
    folder = odd.roomy(tiny / "baseline", tmp_path / "m")
    odd.settings(chat_template=odd.ALWAYS_THINKING.replace("<think>", "<reason>"))(folder)
    facts: dict[str, Any] = {"chat_template": True, "benchmarks": [{"lm_eval": "demo_words", "samples": 1}]}
    tags = ["<reason>", "</reason>"]
    [refusal] = build(config(folder, shared, thinking_tags=tags, **facts)).refusals
    assert "opens <reason> although thinking is off" in refusal
    plan = build(config(folder, shared, thinking_tags=tags, thinking=True, thinking_tokens=64, **facts))
    plan.check()
    [sample] = requests_of(plan)
    assert sample.thought_opened
    assert answer_text("so</reason> 4", plan.setup("m").thinking, True, (), "q") == "4"


class Echo:
    """Answers a prompt with its last token."""

    seen: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        self.facts: dict[str, Any] = {}
        self.setting = contexts[0]

    def can_switch_to(self, setting: ContextSetting) -> bool:
        return True

    def set_context(self, setting: ContextSetting) -> None:
        self.setting = setting

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion]:
        for request in requests:
            if isinstance(request, Prompt):
                self.seen.append(tuple(request.ids))
                yield Completion(request.key, "word", 1, "stop", 0.0, sent_tokens=len(request.ids))

    def close(self) -> None:
        pass


class Tomorrow(datetime.date):
    """The day after the run began."""

    @classmethod
    def today(cls) -> Tomorrow:
        return cls(2031, 5, 2)


def test_a_template_that_prints_the_date_prints_the_runs(
    tiny: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json records the date of the first session; a run that is continued on another day asks nothing again."""
    folder = odd.roomy(tiny / "baseline", tmp_path / "m")
    odd.settings(chat_template=odd.DATED)(folder)
    made = config(folder, shared, chat_template=True, benchmarks=[{"ruler": ["fwe"], "lengths": [600], "samples": 3}])
    plan = build(made, datetime.date(2031, 5, 1))
    path = tmp_path / "run"
    _, first = run(plan, path, progress=Progress(plan, quiet=True), engine_factory=Echo)
    assert first.asked == 3
    assert Store.read(path).manifest["date"] == "2031-05-01"
    assert all("01 May 2031" in plan.setup("m").tokenizer.decode(ids[:60]) for ids in Echo.seen)
    monkeypatch.setattr(planning.datetime, "date", Tomorrow)
    later = build(made, planning.recorded_date(path))
    assert later.date == plan.date
    _, second = run(later, path, progress=Progress(later, quiet=True), engine_factory=Echo)
    assert (second.asked, second.reused) == (0, 3)
    assert Store.read(path).manifest["date"] == "2031-05-01"
    fresh = build(made)
    assert fresh.date == Tomorrow(2031, 5, 2)
    [sample, *_] = (event for event in requests_of(fresh) if isinstance(event, SampleRequest))
    assert "02 May 2031" in sample.excerpt["head"]


def test_a_run_of_an_older_version_keeps_the_date_of_its_start(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"cells": [], "start": "2026-03-04T23:00:00+0000"}))
    assert planning.recorded_date(tmp_path) == datetime.date(2026, 3, 4)
    assert planning.recorded_date(tmp_path / "none") is None


def test_a_benchmark_is_left_out_of_a_context(tiny: Path, shared: Path) -> None:
    """What a refusal offers exists: `contexts:` in a benchmark's entry."""
    contexts = [{"label": "short", "max_length": 256}, {"label": "long", "max_length": 2048}]
    mmlu = {"mmlu": {"subjects": ["anatomy"], "samples": 2}}
    [refusal] = build(config(tiny / "baseline", shared, contexts=contexts, benchmarks=[mmlu])).refusals
    assert "`contexts:` in its entry" in refusal
    left_out = {**mmlu, "contexts": ["long"]}
    plan = build(config(tiny / "baseline", shared, contexts=contexts, benchmarks=[left_out]))
    plan.check()
    assert {cell.context for cell in plan.cells} == {"long"}
    with pytest.raises(GatedevalError, match="no context 'lon'; did you mean 'long'"):
        from_dict(
            {
                "name": "n",
                "models": [{"label": "m", "path": str(tiny)}],
                "contexts": contexts,
                "benchmarks": [{**mmlu, "contexts": ["lon"]}],
            }
        )


def test_a_refused_plan_prints_what_can_be_run(tiny: Path, shared: Path, tmp_path: Path) -> None:
    """A cell whose prompts cannot be made was once listed without its tokens, which ended in a KeyError."""
    from harness.commands.main import cli

    folder = odd.roomy(tiny / "baseline", tmp_path / "m")
    odd.settings(chat_template=odd.NO_SYSTEM)(folder)
    facts = {
        "name": "n", "data": str(shared / "data"), "chat_template": True,
        "models": [{"label": "m", "path": str(folder)}],
        "benchmarks": [
            {"mmlu": {"subjects": ["anatomy"], "shots": 0, "samples": 2}}, {"gsm8k": {"shots": 1, "samples": 2}},
        ],
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(facts))
    done = CliRunner().invoke(cli, ["plan", str(tmp_path / "c.yaml")])
    assert done.exit_code == 2
    assert "gsm8k" in done.output
    assert done.output.count("no system role") == 1
