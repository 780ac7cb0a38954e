"""The demo's texts and questions: deterministic, fair, and in training byte for byte as lm-eval sends them."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from harness.benchmarks.lm_tasks import OUR_TASKS, load_tasks
from harness.config import load
from harness.data.folder import DataFolder
from harness.engine.requests import Choice as Chosen
from harness.engine.requests import Completion
from harness.models.bpe import train_bpe
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError
from tasks.demo import questions as q
from tasks.demo.prose import HAYSTACK_SEED, essay, files, prose, sentences
from tasks.demo.words import CATEGORIES
from tasks.ruler import generate, load_tokenizer
from tasks.ruler.haystack import load_essay
from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.words import word_list

LONG = essay(1, 300_000)


def test_prose_is_plain_small_and_the_same_each_time() -> None:
    assert not re.search(r"[^A-Za-z ,.\n]", LONG)
    assert not {"special", "magic", "number", "numbers", "hidden"} & set(LONG.lower().split())
    assert len(set(re.findall("[a-z]+", LONG.lower()))) <= 700
    assert essay(1, 300_000) == LONG
    assert list(islice(prose(2), 5)) != list(islice(prose(3), 5))
    lines = list(islice(sentences(1), 3000))
    assert " ".join(lines).startswith(LONG[:5000].replace("\n\n", " "))
    assert all(line[0].isupper() and line.endswith(".") and "{" not in line for line in lines)
    assert len(set(lines)) > 0.85 * len(lines)  # it does not say the same again and again


def test_haystack_is_not_training_text() -> None:
    ours = set(islice(prose(HAYSTACK_SEED), 300))
    assert not ours & set(islice(prose(1), 3000))


DATA = Path(prose.__code__.co_filename).parent / "data"


def test_data_folder_is_the_generator_s_and_is_named_in_a_manifest() -> None:
    made = dict(files())
    there = {p.relative_to(DATA).as_posix(): p.read_text(encoding="utf-8") for p in DATA.rglob("*") if p.is_file()}
    assert there == made
    found = DataFolder(DATA).find("essays").manifest()
    content = made["essays/gatedeval_demo_prose.json"].encode()
    assert (found["file"], found["sha256"]) == ("gatedeval_demo_prose.json", hashlib.sha256(content).hexdigest())
    assert DataFolder(DATA).find("punkt").path.is_relative_to(DATA)


def test_essay_is_split_into_its_own_sentences() -> None:
    text = load_essay(DataFolder(DATA))
    n = len(text.words)
    assert n > 10_000
    spans = text.sentences(n)
    want = list(islice(sentences(HAYSTACK_SEED), len(spans)))
    assert [text.slice(a, b) for a, b in spans] == want


def test_config_names_the_folder_relative_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATA, tmp_path / "tasks" / "demo" / "data")
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "x.yaml"
    config.write_text(
        "name: x\nmodels: [{label: m, path: org/m}]\nbenchmarks: [{lm_eval: demo_words}]\ndata: ../tasks/demo/data\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load(config)
    assert loaded.data is not None
    assert DataFolder(loaded.data).find("essays").path.name == "gatedeval_demo_prose.json"


@pytest.fixture(scope="module")
def small_bpe() -> Tokenizer:
    """1,280 entries, digits one by one, over the demo's prose, RULER's protocol and its keys: what the demo uses."""

    def material() -> Iterator[str]:
        yield LONG
        for word in (*word_list("adjective"), *word_list("noun")):
            yield from (f" {word}-", f"-{word}")
        for _ in range(400):
            yield "\n".join([*(v for v in FAMILIES["niah"].values() if isinstance(v, str)), NOISE])

    return load_tokenizer(train_bpe(material(), 1280))


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2"])
def test_ruler_fits_and_fills_256_tokens(small_bpe: Tokenizer, task: str) -> None:
    made = list(
        generate(task, tokenizer=small_bpe, length=256, samples=60, data=DATA, profile="fair", answer_tokens=16)
    )
    fill = [(s.validity.prompt_tokens + 16) / 256 for s in made]
    assert all(s.validity.evidence_present and not s.validity.answers_elsewhere for s in made)
    assert max(fill) <= 1
    assert sum(fill) / len(fill) >= 0.9
    assert min(fill) >= 0.85  # a line of noise or a needle is a tenth of the whole
    for s in made:
        assert len(small_bpe.encode(s.prompt)) == s.validity.prompt_tokens
        assert len(small_bpe.encode(f" {s.outputs[0]}.")) + 1 == 10  # the answer, its full stop and the end
        key = s.prompt.rsplit("special magic number for ", 1)[1].removesuffix(" mentioned in the provided text is")
        assert s.prompt.count(f"One of the special magic numbers for {key} is: {s.outputs[0]}.") == 1


def test_every_thing_is_of_one_kind() -> None:
    members = [m for of_kind in CATEGORIES.values() for m in of_kind]
    assert len(members) == len(set(members)) == 144
    assert not set(members) & set(CATEGORIES)


def test_choices_have_one_right_option_and_uniform_letters() -> None:
    rng = random.Random(0)
    drawn = [q.choice(rng) for _ in range(4000)]
    kind_of = {m: kind for kind, members in CATEGORIES.items() for m in members}
    for c in drawn:
        asked = c.question.removesuffix("?").split()[-1]
        assert [kind_of[o] == asked for o in c.options] == [i == c.answer for i in range(4)]
        assert len({kind_of[o] for o in c.options}) == 4
    assert max(abs(n - 1000) for n in Counter(c.answer for c in drawn).values()) < 120  # 4 sigma


def test_problems_add_up_and_no_constant_answers_them() -> None:
    rng = random.Random(0)
    drawn = [q.problem(rng) for _ in range(8000)]
    for p in drawn:
        first, sign, second, _, result = p.solution.split("\n")[0].split()
        assert 1 <= int(first) <= 9 >= int(second) >= 1
        assert int(first) + (int(second) if sign == "+" else -int(second)) == p.answer == int(result)
        assert p.solution == f"{first} {sign} {second} = {p.answer}\n#### {p.answer}"
        assert re.findall(r"\d", p.question) == [first, second]
        assert not re.search(r"\b1 \w+s\b|\b[2-9] (apple|pear|plum|egg|hat|cow|box)\b", p.question), p.question
    assert max(Counter(p.answer for p in drawn).values()) / len(drawn) < 0.075  # 1/16 and 4 sigma


def test_evaluation_is_held_out_from_training() -> None:
    rng = random.Random(7)
    choices = {(c.question, *sorted(c.options)) for c in (q.choice(rng) for _ in range(100_000))}
    assert not choices & {(c.question, *sorted(c.options)) for c in q.test_choices()}
    problems = {p.question for p in (q.problem(rng) for _ in range(100_000))}
    assert not problems & {p.question for p in q.test_problems()}


def test_committed_files_are_the_generator_s() -> None:
    made = dict(q.files())
    assert {path.name: path.read_text(encoding="utf-8") for path in OUR_TASKS.glob("*.jsonl")} == made
    for name, content in made.items():
        lines = content.splitlines()
        assert len(set(lines)) == len(lines) == (256 if "test" in name else 5)
    assert set(Counter(c.answer for c in q.test_choices()).values()) == {64}
    assert set(Counter(p.answer for p in q.test_problems()).values()) == {16}
    assert sum("+" in p.solution for p in q.test_problems()) == 186  # 72.7 %, as tasks/demo/README.md says


@pytest.mark.parametrize("shots", [0, 1, 2, 3])
def test_training_sees_what_lm_eval_sends(shots: int) -> None:
    task = load_tasks("demo_choice", shots)["demo_choice"]
    for (number, doc), c in zip(task.documents(None), q.test_choices(), strict=True):
        ask, _ = task.request(number, doc, None)
        assert [p[0] for p in ask.options] == [q.choice_prompt(c, q.dev_choices()[:shots])] * 4
        assert ask.options[c.answer][1] == q.choice_answer(c)
        assert task.reference(doc) == [str(c.answer)]
    task = load_tasks("demo_words", shots)["demo_words"]
    for (number, doc), p in zip(task.documents(None), q.test_problems(), strict=True):
        ask, _ = task.request(number, doc, None)
        assert ask.prompt == q.problem_prompt(p, q.dev_problems()[:shots])
        assert (ask.max_tokens, ask.stop, ask.temperature) == (32, ("Question:",), 0.0)
        assert task.reference(doc) == [p.solution]


def test_scores_are_those_of_mmlu_and_gsm8k() -> None:
    task = load_tasks("demo_choice", 3)["demo_choice"]
    number, doc = next(iter(task.documents(1)))
    _, instances = task.request(number, doc, None)
    for best in range(4):
        logprobs = tuple(-1.0 if i == best else -2.0 for i in range(4))
        assert task.score(doc, instances, Chosen(0, logprobs, (False,) * 4, 0.0), "") == {
            "acc": float(best == q.test_choices()[0].answer)
        }
    task = load_tasks("demo_words", 3)["demo_words"]
    first = q.test_problems()[0]
    number, doc = next(iter(task.documents(1)))
    for response, strict, flexible in (
        (q.problem_answer(first), 1, 1),
        (f" it is {first.answer}", 0, 1),
        (f" {first.answer} + 1 = {first.answer + 1}\n#### {first.answer + 1}", 0, 0),
        ("", 0, 0),
    ):
        _, instances = task.request(number, doc, None)
        got = task.score(doc, instances, Completion(0, response, 1, "stop", 0.0), response)
        assert got == {"exact_match,strict-match": strict, "exact_match,flexible-extract": flexible}, response


def test_shots_beyond_the_examples_are_refused() -> None:
    task = load_tasks("demo_choice", 6)["demo_choice"]
    number, doc = next(iter(task.documents(1)))
    with pytest.raises(GatedevalError, match=r"demo_choice.*exceeds the 5"):
        task.request(number, doc, None)


def test_from_any_directory_without_indexing_everything(tmp_path: Path) -> None:
    code = (
        "from harness.benchmarks import lm_tasks as lmtasks; t = lmtasks.load_tasks('demo_words', 3)['demo_words'];"
        "print(len(t), lmtasks.task_manager.cache_info().currsize)"
    )
    path = str(OUR_TASKS.parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert done.stdout.split() == ["256", "1"]  # one folder was indexed: ours


def test_lm_eval_itself_takes_the_folder(tmp_path: Path) -> None:
    """lm-eval's own loader, as its `--include_path` calls it, without our package's help."""
    from lm_eval.tasks import TaskManager

    loaded = TaskManager(include_defaults=False, include_path=str(OUR_TASKS)).load(["demo_choice", "demo_words"])
    assert {name: len(task.eval_docs) for name, task in loaded["tasks"].items()} == {
        "demo_choice": 256,
        "demo_words": 256,
    }
    assert json.dumps(loaded["tasks"]["demo_words"].dump_config(), default=str)
