"""Engines that do not start or die while they answer, without vLLM: `run` takes another engine class as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.config import ContextSetting, Model, from_dict, to_dict
from harness.engine.requests import Completion, EngineError, Prompt, Question, RequestError
from harness.run.plan import Plan, build
from harness.run.progress import Progress
from harness.run.runner import run
from harness.run.session import Tally
from harness.store import Store


class FakeEngine:
    """Answers every prompt with a word.

    `die_under`: context setting -> answers after which it dies there, once; `dies_always`: before every first answer.
    """

    starts: ClassVar[list[list[str]]] = []  # per start, the labels of its context settings
    die_under: ClassVar[dict[str, int]] = {}
    dies_always: ClassVar[bool] = False
    start_error: ClassVar[str] = ""
    refuses: ClassVar[str] = ""  # text of the key of a request that it gives up on, once
    facts_of_all: ClassVar[dict[str, Any]] = {}
    switches: ClassVar[bool] = True

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: Any) -> None:
        self.starts.append([c.label for c in contexts])
        if self.start_error:
            raise EngineError(self.start_error)
        self.facts: dict[str, Any] = {"model_class": "FakeEngine", **self.facts_of_all}
        self.setting = contexts[0]
        self.under = contexts[0].label
        self.closed = False

    def can_switch_to(self, setting: ContextSetting) -> bool:
        return self.switches or setting.label == self.under

    def set_context(self, setting: ContextSetting) -> None:
        self.setting = setting

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion]:
        answers = 0
        for request in requests:
            if request is None:
                continue
            assert isinstance(request, Prompt)
            if self.dies_always:
                raise EngineError("the engine died: always")
            if answers == self.die_under.get(self.setting.label, -1):
                del self.die_under[self.setting.label]
                raise EngineError("the engine died: killed by the test")
            if str(request.key) == self.refuses:
                FakeEngine.refuses = ""
                raise RequestError(request.key, "the engine gave up with finish reason 'error'")
            answers += 1
            yield Completion(request.key, "word", 1, "stop", 0.0, sent_tokens=len(request.ids))

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def reset_engine() -> None:
    FakeEngine.starts.clear()
    FakeEngine.die_under.clear()
    FakeEngine.start_error, FakeEngine.refuses, FakeEngine.dies_always = "", "", False
    FakeEngine.facts_of_all = {}
    FakeEngine.switches = True


def plan(tiny: Path) -> Plan:
    """One model, two settings, two cells of 3 samples each in either; fwe keeps the order of its samples."""
    return build(
        from_dict(
            {
                "name": "p",
                "models": [{"label": "a", "path": str(tiny / "baseline")}],
                "contexts": [{"label": label, "rope_theta": base, "max_length": 1024} for label, base in SETTINGS],
                "benchmarks": [{"ruler": ["fwe"], "lengths": [1024, 512], "samples": 3}],
            }
        )
    )


SETTINGS = (("first", 1e6), ("second", 2e6))


def run_once(tiny: Path, path: Path) -> tuple[str, Tally]:
    made = plan(tiny)
    return run(made, path, progress=Progress(made, quiet=True), engine_factory=FakeEngine)


def answered(path: Path) -> dict[tuple[str, int], int]:
    """(context setting, length) -> stored samples."""
    store = Store.read(path)
    return {(c.context, c.length): len(list(store.samples(c))) for c in store.cells}


def test_one_engine_runs_every_setting_and_a_finished_run_starts_none(tiny: Path, tmp_path: Path) -> None:
    state, tally = run_once(tiny, tmp_path / "run")
    assert (state, tally.asked, tally.reused, tally.failed) == ("complete", 12, 0, [])
    assert FakeEngine.starts == [["first", "second"]]
    assert tally.sent_tokens > 12 * 400
    state, tally = run_once(tiny, tmp_path / "run")
    assert (state, tally.asked, tally.reused) == ("complete", 0, 12)
    assert len(FakeEngine.starts) == 1


def test_a_model_whose_encoding_cannot_be_replaced_gets_an_engine_per_setting(tiny: Path, tmp_path: Path) -> None:
    FakeEngine.switches = False
    state, tally = run_once(tiny, tmp_path / "run")
    assert (state, tally.asked, tally.failed) == ("complete", 12, [])
    assert FakeEngine.starts == [["first", "second"], ["second"]]


def test_a_dead_engine_fails_the_cell_it_worked_on_and_another_engine_runs_the_rest(tiny: Path, tmp_path: Path) -> None:
    FakeEngine.die_under["first"] = 1
    state, tally = run_once(tiny, tmp_path / "run")
    [failed] = tally.failed
    assert state == "incomplete"
    assert failed.startswith("a__first__")
    assert failed.endswith("__1024"), "the longest prompts are sent first"
    assert Store.read(tmp_path / "run").failures == {failed: "the engine died: killed by the test"}
    assert FakeEngine.starts == [["first", "second"], ["first", "second"]]
    assert answered(tmp_path / "run") == {
        ("first", 1024): 1, ("first", 512): 3, ("second", 1024): 3, ("second", 512): 3,
    }  # fmt: skip
    state, tally = run_once(tiny, tmp_path / "run")
    assert (state, tally.asked, tally.failed) == ("complete", 2, [])
    assert Store.read(tmp_path / "run").failures == {}


def test_a_setting_that_is_finished_is_not_run_by_the_second_engine(tiny: Path, tmp_path: Path) -> None:
    FakeEngine.die_under["second"] = 4
    state, tally = run_once(tiny, tmp_path / "run")
    assert state == "incomplete"
    assert [key.rpartition("__")[2] for key in tally.failed] == ["512"]
    assert FakeEngine.starts == [["first", "second"]], "no cell is left: no second engine"
    assert answered(tmp_path / "run")["second", 1024] == 3


def test_an_engine_that_cannot_start_fails_every_cell_of_its_model_once(tiny: Path, tmp_path: Path) -> None:
    FakeEngine.start_error = "vLLM did not start: no memory"
    state, tally = run_once(tiny, tmp_path / "run")
    assert state == "incomplete"
    assert len(FakeEngine.starts) == 1
    assert sorted(tally.failed) == sorted(cell.key for cell in plan(tiny).cells)
    assert set(Store.read(tmp_path / "run").failures.values()) == {"vLLM did not start: no memory"}


def test_after_two_deaths_without_an_answer_the_models_cells_fail(tiny: Path, tmp_path: Path) -> None:
    """Each start of an engine takes up to minutes; a model that kills every engine would take one for every cell."""
    FakeEngine.dies_always = True
    state, tally = run_once(tiny, tmp_path / "run")
    assert state == "incomplete"
    assert len(FakeEngine.starts) == 2
    assert sorted(tally.failed) == sorted(cell.key for cell in plan(tiny).cells), "each cell fails once"
    assert set(Store.read(tmp_path / "run").failures.values()) == {"the engine died: always"}


def test_an_answer_between_two_deaths_starts_the_count_again(tiny: Path, tmp_path: Path) -> None:
    FakeEngine.die_under.update({"first": 1, "second": 1})
    _, tally = run_once(tiny, tmp_path / "run")
    assert len(tally.failed) == 2
    assert len(FakeEngine.starts) == 3
    assert answered(tmp_path / "run") == {
        ("first", 1024): 1, ("first", 512): 3, ("second", 1024): 1, ("second", 512): 3,
    }  # fmt: skip


def test_answers_are_counted_and_not_requests(tiny: Path, tmp_path: Path) -> None:
    """An engine that dies at its first answer was asked, and nothing was answered."""
    FakeEngine.die_under |= {"first": 0, "second": 0}
    state, tally = run_once(tiny, tmp_path / "run")
    stored = sum(answered(tmp_path / "run").values())
    assert state == "incomplete"
    assert tally.answered == stored < tally.asked


def test_a_failure_about_one_request_names_its_own_sample_and_spares_the_other_cells(
    tiny: Path, tmp_path: Path
) -> None:
    FakeEngine.refuses = "ruler fwe at 512, sample 1"
    state, tally = run_once(tiny, tmp_path / "run")
    assert (state, tally.failed) == ("incomplete", ["a__first__ruler__fwe__512"])
    assert Store.read(tmp_path / "run").failures == {
        "a__first__ruler__fwe__512": "ruler fwe at 512, sample 1: the engine gave up with finish reason 'error'"
    }
    assert answered(tmp_path / "run") == {
        ("first", 1024): 3, ("first", 512): 1, ("second", 1024): 3, ("second", 512): 3,
    }  # fmt: skip


def test_a_resume_under_other_arithmetic_warns_and_the_caption_counts_its_answers(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.export import export_run

    FakeEngine.facts_of_all = {"arithmetic": {"device": "cpu", "enforce_eager": True, "ranks": 1}}
    FakeEngine.die_under["second"] = 1
    made = plan(tiny)
    run(made, tmp_path / "run", progress=Progress(made, quiet=False), engine_factory=FakeEngine)
    assert "other arithmetic" not in capsys.readouterr().err
    FakeEngine.facts_of_all = {"arithmetic": {"device": "cpu", "enforce_eager": False, "ranks": 1}}
    run(made, tmp_path / "run", progress=Progress(made, quiet=False), engine_factory=FakeEngine)
    [line] = [x for x in capsys.readouterr().err.splitlines() if "other arithmetic" in x]
    assert line == (
        "a: 10 stored answers were computed under other arithmetic (enforce_eager true / false);"
        " new answers stand beside them, and the caption counts them"
    )
    caption = " ".join(export_run(tmp_path / "run").split())
    assert "2 of 12 answers were computed under other arithmetic than the rest: enforce_eager true / false." in caption
    store = Store.read(tmp_path / "run")
    keys = {s.arithmetic for cell in store.cells for s in store.samples(cell)}
    assert keys == set(store.manifest["arithmetic"]), "every sample names what computed it"


def test_answers_of_before_without_a_record_of_their_arithmetic_are_told(tiny: Path, tmp_path: Path) -> None:
    from harness.export import export_run

    FakeEngine.die_under["second"] = 1
    run_once(tiny, tmp_path / "run")
    assert "arithmetic" not in export_run(tmp_path / "run", allow_partial=True), "nothing is known, nothing is said"
    FakeEngine.facts_of_all = {"arithmetic": {"device": "cpu"}}
    run_once(tiny, tmp_path / "run")
    caption = " ".join(export_run(tmp_path / "run").split())
    assert "2 of 12 answers were computed under other arithmetic than the rest: not recorded." in caption


def test_a_lost_engine_leaves_no_cell_with_the_answers_of_an_older_config(tiny: Path, tmp_path: Path) -> None:
    """Every cell of the resumed run holds answers under another RoPE base, and the engine dies at its first sample."""
    run_once(tiny, tmp_path / "run")
    data = to_dict(plan(tiny).config)
    for context in data["contexts"]:
        context["rope_theta"] *= 3
    changed = build(from_dict(data))
    FakeEngine.die_under["first"] = 0
    state, tally = run(changed, tmp_path / "run", progress=Progress(changed, quiet=True), engine_factory=FakeEngine)
    store = Store.read(tmp_path / "run")
    assert state == "incomplete"
    assert len(tally.failed) == 1
    assert tally.answered == tally.redone == 9, "the three other cells are answered by a second engine"
    stale = {s.hash for s in Store.read(write_base(tiny, tmp_path)).samples(next(iter(store.cells)))}
    for cell in store.cells:
        assert cell.key in tally.failed or not stale & {s.hash for s in store.samples(cell)}


def write_base(tiny: Path, tmp_path: Path) -> Path:
    run_once(tiny, tmp_path / "base")
    return tmp_path / "base"
