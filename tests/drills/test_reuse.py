"""An answer is reused only if a fresh run would give it: every input is changed alone, and a resumed run is compared.

The base run is finished. Then one value changes: of the config, the checkpoint, the tokenizer, the data. The run is
resumed, and the same config is run afresh. Both must have the same answers and the same scores, byte for byte.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.config import Config
from harness.run import runner
from harness.run.plan import build
from harness.run.progress import Progress
from harness.run.session import Tally
from harness.store import Store
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support import perturbation as p
from tests.support.fake_engine import FakeEngine, InlineProducer
from tests.support.killing import killed_after

Content = dict[str, Any]
ARMS = ("models.0.arm", "models.0.step", "table.arms", "table.steps")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)


def fast(patch: pytest.MonkeyPatch) -> None:
    """Samples are produced in this process, and nothing waits for the disk: a run takes a tenth of a second."""
    patch.setattr(runner, "Prefetcher", InlineProducer)
    patch.setattr(os, "fsync", lambda descriptor: None)


def run(config: Config, path: Path) -> Tally:
    plan = build(config)
    plan.check()
    _, tally = runner.run(plan, path, progress=Progress(plan, quiet=True), engine_factory=FakeEngine)
    return tally


def content(path: Path) -> Content:
    """What a run says: cell and sample -> answer and scores; failures; the derived table."""
    store = Store.read(path)
    found: Content = {"failures": sorted(store.failures.values()), "table": (path / "cells.csv").read_text()}
    for cell in store.cells:
        for s in store.samples(cell):
            answer = (s.response, s.response_tokens, s.finish_reason, s.extra.get("logprobs"))
            found[f"{cell.key} {s.id}"] = (answer, s.references, list(s.scores.items()))
    return found


def _unlabelled(key: str) -> str:
    """Benchmark, task, length and id out of a sample's key."""
    return key.split("__", 2)[2]


@dataclass
class World:
    root: Path
    finished: Content
    copies: Path
    number: int = 0

    @property
    def samples(self) -> list[str]:
        return [key for key in self.finished if key not in ("failures", "table")]

    def check(self, changes: list[p.Change]) -> set[str]:
        """Make each of the changes of one key; the kinds of change that they were ("refused": by both runs)."""
        kinds = set()
        for change in changes:
            self.number += 1
            root = self.copies / str(self.number)
            p.linked_copy(self.root, root)
            try:
                kinds.add(self._compare(change, root))
            finally:
                shutil.rmtree(root)
        return kinds

    def _compare(self, change: p.Change, root: Path) -> str:
        config = change.apply(root)
        refusals, tally = [], Tally()
        for name in ("fresh", "results"):
            try:
                tally = run(config, root / name)
            except GatedevalError as error:
                refusals.append(str(error))
        if refusals:
            assert len(set(refusals)) == 1
            assert len(refusals) == 2, f"{change.where}: one of the two runs is refused: {refusals}"
            return "refused"
        fresh, resumed = content(root / "fresh"), content(root / "results")
        assert resumed == fresh, f"{change.where}: the resumed run has another content than a fresh one"
        common = [key for key in fresh if key in self.finished and key not in ("failures", "table")]
        # A label is no part of a sample: its answer may stand under another model or context of the finished run.
        known = {(_unlabelled(key), repr(value[0])) for key, value in self.finished.items() if key in self.samples}
        new = sum((_unlabelled(k), repr(fresh[k][0])) not in known for k in fresh if k not in ("failures", "table"))
        kind = "neither"
        if any(fresh[key][0] != self.finished[key][0] for key in common):
            kind = "answers"
        elif any(fresh[key] != self.finished[key] for key in common):
            kind = "scores"
        assert tally.asked >= new
        # Of a tokenizer's files and of config.json it is not known what each key does: any change asks again.
        if kind != "answers" and not change.where.startswith(("model/config.json", "model/tokenizer")):
            assert tally.asked == new, f"{change.where}: {tally.asked} samples were asked, {new} answers are others"
        return kind


@pytest.fixture(scope="module")
def world(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = tmp_path_factory.mktemp("world")
    p.build_world(base / "world", tiny / "baseline")
    with pytest.MonkeyPatch.context() as patch:
        fast(patch)
        run(p.from_dict(p.config_of(base / "world")), base / "world/results")
    finished = content(base / "world/results")
    scores = [value[2][0][1] for key, value in finished.items() if key not in ("failures", "table")]
    assert 0.2 < sum(scores) / len(scores) < 0.8, "answers that are all right or all wrong would show little"
    return World(base / "world", finished, base)


def kinds_of(world: World, *keys: Iterable[tuple[str, list[p.Change]]]) -> dict[str, set[str]]:
    """Key -> the kinds of change that its changes are."""
    return {where: world.check(changes) for source in keys for where, changes in source}


@pytest.mark.slow
def test_every_key_of_the_config(world: World) -> None:
    keys = list(p.config_changes(world.root))
    changeable = {re.sub(r"\.\d+", "", where) for where, changes in keys if changes}
    stuck = {re.sub(r"\.\d+", "", where) for where, _ in keys} - changeable
    assert not stuck, "keys that `perturbation` knows no other value for: extend its candidates"
    kinds = kinds_of(world, keys)
    dtypes = ("models.0.dtype", "benchmarks.1.mmlu.dtype")
    for key in ("seed", "data", "models.0.path", *dtypes, "chat_template", "contexts.0.yarn"):
        assert "answers" in kinds[f"config: {key}"], key
    for key in ("name", "models.0.label", "contexts.0.label", "engine.prefix_caching", "caption", *ARMS):
        assert kinds[f"config: {key}"] == {"neither"}, key


@pytest.mark.extended
def test_every_key_of_generation_config(world: World) -> None:
    name = "model/generation_config.json"
    kinds = kinds_of(world, p.file_changes(world.root, name), p.removals(world.root, name))
    assert "answers" in kinds[f"{name}: eos_token_id"]
    assert kinds[f"{name}: temperature"] == kinds[f"{name}: max_new_tokens"] == {"neither"}


@pytest.mark.extended
def test_every_key_of_the_checkpoint_config(world: World) -> None:
    name = "model/config.json"
    kinds = kinds_of(world, p.file_changes(world.root, name), p.removals(world.root, name))
    assert "answers" in kinds[f"{name}: rope_theta"]
    assert "answers" in kinds[f"{name}: rms_norm_eps"]
    assert kinds[f"{name}: head_dim"] == {"refused"}


@pytest.mark.slow
def test_every_key_of_the_tokenizer(world: World) -> None:
    names = ("model/tokenizer.json", "model/tokenizer_config.json")
    changes = [p.file_changes(world.root, name, width=6) for name in names]
    kinds = kinds_of(world, *changes, p.removals(world.root, names[1]))
    assert "answers" in kinds["model/tokenizer_config.json: eos_token"]
    assert "neither" in kinds["model/tokenizer_config.json: model_max_length"]


@pytest.mark.parametrize(
    "name", ["gsm8k/test.jsonl", "gsm8k/train.jsonl", "mmlu/test/anatomy_test.csv", "squad/dev-v2.0.json"]
)
@pytest.mark.slow
def test_every_field_of_the_data(world: World, name: str) -> None:
    kinds = kinds_of(world, p.file_changes(world.root, f"data/{name}", width=5))
    assert any("answers" in kind for kind in kinds.values()), "a question that is another prompt"
    if name in ("gsm8k/test.jsonl", "mmlu/test/anatomy_test.csv"):
        assert any("scores" in kind and "answers" not in kind for kind in kinds.values()), "a reference alone"


# ----------------------------------------------------------------------------------------------- one case at a time


def test_arms_that_are_added_renamed_or_dropped_ask_no_sample_again(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.root / "results", tmp_path / "results")
    plain = p.to_dict(p.from_dict(p.config_of(world.root)))
    for arm in ({"arm": "another"}, {"arm": "another", "step": 5}, {}):
        entry = {k: v for k, v in plain["models"][0].items() if k not in ("arm", "step")}
        config = p.from_dict({**plain, "models": [{**entry, **arm}], "table": {"arms": "off"} if arm else {}})
        starts = FakeEngine.starts
        assert run(config, tmp_path / "results").asked == 0
        assert FakeEngine.starts == starts, "no engine is started for it"
        manifest = Store.read(tmp_path / "results").manifest
        assert {k: manifest["config"]["models"][0].get(k) for k in ("arm", "step")} == {
            "arm": None,
            "step": None,
            **arm,
        }
        assert manifest["unverified"] == []


def renamed(config: Config, **labels: str) -> Config:
    """The config with other labels, of models and contexts alike."""
    data = p.to_dict(config)
    for entry in (*data["models"], *data["contexts"]):
        entry["label"] = labels.get(entry["label"], entry["label"])
    return p.from_dict(data)


@pytest.mark.parametrize(
    "labels",
    [{"m": "baseline"}, {"native": "native, 512"}, {"native": "YaRN", "YaRN": "native"}],
    ids=["model", "context", "exchanged"],
)
def test_a_renamed_label_asks_no_sample_again(world: World, tmp_path: Path, labels: dict[str, str]) -> None:
    shutil.copytree(world.root / "results", tmp_path / "results")
    config = renamed(p.from_dict(p.config_of(world.root)), **labels)
    starts = FakeEngine.starts
    tally = run(config, tmp_path / "results")
    assert (tally.asked, FakeEngine.starts) == (0, starts), "no sample is asked, and no engine is started for it"
    assert tally.relabelled > 0
    run(config, tmp_path / "fresh")
    assert content(tmp_path / "results") == content(tmp_path / "fresh")
    entry = Store.read(tmp_path / "results").manifest["models"][labels.get("m", "m")]
    assert entry["engine"]["model_class"] == "FakeEngine", "what is known of the engine stays with the weights"
    assert run(config, tmp_path / "results").relabelled == 0, "the second time they lie in their own files"


def test_another_scorer_scores_the_stored_answers_and_asks_none(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world.root / "results", tmp_path / "results")
    config = p.from_dict(p.config_of(world.root))
    monkeypatch.setattr("harness.benchmarks.ruler.scores", lambda task, references, text: {"score": 0.25})
    tally = run(config, tmp_path / "results")
    assert (tally.asked, tally.rescored) == (0, 18), "three contexts, two tasks, three samples"
    store = Store.read(tmp_path / "results")
    assert {s.scores["score"] for c in store.cells if c.benchmark == "ruler" for s in store.samples(c)} == {0.25}
    run(config, tmp_path / "fresh")
    assert content(tmp_path / "results") == content(tmp_path / "fresh")
    monkeypatch.undo()
    fast(monkeypatch)
    assert run(config, tmp_path / "results").rescored == 18, "and back again"
    assert content(tmp_path / "results") == world.finished


def test_an_answer_that_the_scorer_now_refuses_fails_its_cell_as_in_a_fresh_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(task: str, references: list[str], text: str) -> dict[str, float]:
        raise ZeroDivisionError("division by zero")

    shutil.copytree(world.root / "results", tmp_path / "results")
    config = p.from_dict(p.config_of(world.root))
    monkeypatch.setattr("harness.benchmarks.ruler.scores", refuse)
    failures = []
    for name in ("results", "fresh"):
        tally = run(config, tmp_path / name)
        store = Store.read(tmp_path / name)
        assert len(tally.failed) == 6, "the other benchmarks' cells go on"
        assert all(not list(store.samples(c)) for c in store.cells if c.benchmark == "ruler")
        assert all(len(list(store.samples(c))) == 3 for c in store.cells if c.benchmark != "ruler")
        # which sample comes first depends on the order that saves most of the prefix cache
        failures.append({key.split("__")[3]: re.sub(r"\d+:", "N:", error) for key, error in store.failures.items()})
    assert failures[0] == failures[1]
    assert failures[0]["niah%5fsingle%5f1"] == (
        "ruler niah_single_1 at 512, sample N: its scorer failed with ZeroDivisionError: division by zero"
    )


def test_another_decoder_of_the_tokenizer_asks_again(world: World, tmp_path: Path) -> None:
    """Prompt ids stay the same, and the text of the same answer ids is another."""
    p.linked_copy(world.root, tmp_path / "world")
    file = tmp_path / "world/model/tokenizer.json"
    data = p.json.loads(file.read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    data["decoder"] = {"type": "Sequence", "decoders": [data["decoder"], strip]}
    file.unlink()
    file.write_text(p.json.dumps(data))
    config = p.from_dict(p.config_of(tmp_path / "world"))
    tally = run(config, tmp_path / "world/results")
    assert tally.asked == 27, "every generated answer, and no choice among options"
    run(config, tmp_path / "fresh")
    assert content(tmp_path / "world/results") == content(tmp_path / "fresh")
    original = p.from_dict(p.config_of(world.root))
    assert run(original, tmp_path / "world/results").asked == 0, "the first decoder's answers are found again"
    assert content(tmp_path / "world/results") == world.finished


def test_mmlu_and_an_lm_eval_task_of_the_same_name_keep_their_answers_apart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.benchmarks import lm_tasks
    from harness.data.folder import DataFolder

    load, local = lm_tasks.load_tasks, lm_tasks._Splits("mmlu", "anatomy", DataFolder(world.root / "data"))
    monkeypatch.setattr(lm_tasks, "load_tasks", lambda name, shots, given=None: load(name, shots, given or local))
    base = p.config_of(world.root)
    entries = [{"mmlu": {"subjects": ["anatomy"], "shots": 1}}, {"lm_eval": "mmlu_anatomy", "shots": 3}]
    for name, benchmarks in (("both", entries), ("first", entries[:1]), ("second", entries[1:])):
        tally = run(p.from_dict({**base, "benchmarks": benchmarks}), tmp_path / name)
        assert tally.answered == tally.asked == 9 * len(benchmarks)
    parts = [content(tmp_path / name) for name in ("first", "second", "both")]
    for part in parts:
        del part["table"]
    assert parts[2] == parts[0] | parts[1]


# ---------------------------------------------------------------------------------------------------------- kill -9

RUNNER = """
import sys, time
from pathlib import Path
from harness.run import runner
from harness.run.plan import build
from harness.run.progress import Progress
from harness.store import Store
from tests.drills.test_reuse import many_samples
from tests.support.fake_engine import FakeEngine, InlineProducer

root, run, scorer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
runner.Prefetcher = InlineProducer
if scorer == "other":
    import harness.benchmarks.ruler
    harness.benchmarks.ruler.scores = lambda task, references, text: {"score": 0.1 + len(text) % 7 / 10}
append = Store.append
def slowly(store, cell, sample):
    append(store, cell, sample)
    time.sleep(0.002)
Store.append = slowly
plan = build(many_samples(root))
print("go", flush=True)
state, tally = runner.run(plan, run, progress=Progress(plan, quiet=True), engine_factory=FakeEngine)
print(state, tally.answered, tally.rescored)
"""


def many_samples(root: Path) -> Config:
    """The world's config with 40 needle samples under two contexts, and nothing else."""
    data = p.config_of(root)
    ruler = {"ruler": ["niah_single_1"], "lengths": [512], "samples": 40, "profile": "fair"}
    return p.from_dict({**data, "contexts": data["contexts"][::2], "benchmarks": [ruler]})


def started(world: World, path: Path, scorer: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(world.root), str(path), scorer],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_killed_at_twenty_instants_of_answering_and_of_scoring_again(world: World, tmp_path: Path) -> None:
    """kill -9 ten times while samples are answered, then ten times while another scorer scores them again."""
    fresh = {}
    for scorer in ("own", "other"):
        assert "complete 80 0" in started(world, tmp_path / scorer, scorer).communicate()[0]
        fresh[scorer] = content(tmp_path / scorer)
    chance, kills, killed = random.Random(11), 0, tmp_path / "killed"
    for scorer in ("own", "other"):
        for _ in range(10):
            kills += killed_after(started(world, killed, scorer), chance.random() * 0.5)
        end = started(world, killed, scorer).communicate()[0]
        assert "complete" in end
        assert content(killed) == fresh[scorer]
        counts = [len(file.read_bytes().splitlines()) for file in sorted((killed / "samples").iterdir())]
        assert counts == [40 * (1 + (scorer == "other"))] * 2, "no sample is answered or scored twice"
    assert kills >= 12, "too many sessions were over before they were killed: the drill proves little"
