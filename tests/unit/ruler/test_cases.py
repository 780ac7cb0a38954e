"""Faults that must be impossible: what public ports got wrong, and inputs that are hostile."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from harness.data.folder import DataFolder
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError
from tasks.ruler import ANSWER_TOKENS, TASKS, Request, RulerSample, generate
from tasks.ruler.common_words import CommonWords
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws
from tasks.ruler.fit import Rejected
from tasks.ruler.frequent_words import _ZETA_2
from tasks.ruler.needle import DEPTHS, Niah
from tasks.ruler.protocol import FAMILIES, NOISE, SETTINGS
from tasks.ruler.words import all_words, key_words, word_list
from tests.support import ROOT


def make(
    task: str, tokenizer: Tokenizer, shared: Path, length: int = 4096, samples: int = 4, **more: Any
) -> list[RulerSample]:
    return list(generate(task, tokenizer=tokenizer, length=length, samples=samples, data=shared / "data", **more))


def as_it_should_be(sample: RulerSample) -> bool:
    """Nothing is missing, nothing is given away, and the sample is inside its length."""
    checked = sample.validity
    return checked.evidence_present and not checked.answers_elsewhere and not checked.overshoot


@pytest.mark.parametrize("task", TASKS)
def test_fair_budget_prefix_and_fill(shared: Path, bpe4k_bos: Tokenizer, task: str) -> None:
    """Prompt as sent plus answer fits, fills its length, ends in the answer prefix, has one BOS; ids are unique."""
    samples = make(task, bpe4k_bos, shared, samples=12, profile="fair")
    assert [s.row for s in samples] == list(range(12))
    for s in samples:
        ids = bpe4k_bos.encode(s.prompt)
        assert len(ids) == s.validity.prompt_tokens
        assert len(ids) + ANSWER_TOKENS[task] <= 4096
        assert as_it_should_be(s)
        assert ids[0] == bpe4k_bos.prefix_ids[0]
        assert bpe4k_bos.prefix_ids[0] not in ids[1:]
        prefix = bpe4k_bos.encode(s.answer_prefix, special=False)
        assert ids[-len(prefix) :] == prefix
        assert bpe4k_bos.fast.decode(prefix, skip_special_tokens=False) == s.answer_prefix
        assert s.prompt == s.input + s.answer_prefix
    fill = mean((s.validity.prompt_tokens + ANSWER_TOKENS[task]) / 4096 for s in samples)
    assert fill >= (0.90 if task.startswith("qa") else 0.95), fill


@pytest.mark.parametrize("task", TASKS)
def test_fair_samples_are_independent(shared: Path, bpe4k: Tokenizer, task: str) -> None:
    """Sample k is the same alone, after others, and after another task ran."""
    together = [s.to_json() for s in make(task, bpe4k, shared, samples=3, profile="fair")]
    make("niah_single_1", bpe4k, shared, length=1024, samples=1)
    alone = [s.to_json() for s in make(task, bpe4k, shared, samples=3, start=2, profile="fair")]
    assert alone == together[2:]
    assert len(set(together)) == 3


def test_fair_depths_are_spread(shared: Path, bpe4k: Tokenizer) -> None:
    """Upstream: the gold document is always at the same place of equally many. Fair: anywhere."""
    fixed = {(s.validity.document_position, s.validity.documents) for s in make("qa_1", bpe4k, shared, samples=20)}
    assert fixed == {(13, 15), (5, 5)}
    places = [s.validity for s in make("qa_1", bpe4k, shared, samples=60, profile="fair")]
    relative = [(v.document_position or 0) / (v.documents or 1) for v in places]
    assert min(relative) < 0.2
    assert max(relative) > 0.9
    assert 0.4 < mean(relative) < 0.7


def test_fair_common_words_stand_anywhere(shared: Path, bpe4k: Tokenizer) -> None:
    def places(profile: str) -> set[tuple[int, ...]]:
        found = set()
        for s in make("cwe", bpe4k, shared, samples=8, profile=profile):
            listed = s.input.rsplit("most often.\n", 1)[1].split("\nQuestion")[0]
            words = [w for w in listed.split(" ") if not w.rstrip(".").isdigit()]
            found.add((len(words), *[i for i, w in enumerate(words) if w == s.outputs[0]][:5]))
        return found

    assert len(places("nvidia")) <= 3
    assert len(places("fair")) == 8


def test_common_words_example(shared: Path, bpe4k: Tokenizer) -> None:
    """The task's first sentence stands exactly twice, first with a solved example of ten words that is sent."""
    first = FAMILIES["cwe"]["template"].split("\n")[0]
    for profile in ("nvidia", "fair"):
        for s in make("cwe", bpe4k, shared, profile=profile):
            assert s.prompt.count(first) == 2
            solved = s.prompt.split("in the list are:", 1)[1].split("\n", 1)[0]
            assert [p.rstrip(".") for p in solved.split()[::2]] == [str(i) for i in range(1, 11)]
            assert s.length == bpe4k.count(s.prompt) + 120


def test_overshoot_is_reported_and_refused_beyond_the_model(shared: Path, bpe4k_bos: Tokenizer) -> None:
    """Upstream does not count the BOS: one too many is recorded, and refused beyond the limit."""
    (sample,) = make("niah_single_2", bpe4k_bos, shared, length=2048, samples=1)
    golden = sample.validity.prompt_tokens + 128
    assert sample.validity.overshoot == max(0, golden - 2048)
    over = [s.validity.overshoot for s in make("niah_single_3", bpe4k_bos, shared, samples=40)]
    assert set(over) <= {0, 1}
    with pytest.raises(GatedevalError, match="are 1 more than the model's limit"):
        make("niah_single_2", bpe4k_bos, shared, length=2048, samples=1, max_model_len=golden - 1)
    assert make("niah_single_2", bpe4k_bos, shared, length=2048, samples=1, max_model_len=golden)


def test_frequent_words_keeps_its_instruction(shared: Path, bpe4k: Tokenizer) -> None:
    for profile in ("nvidia", "fair"):
        for s in make("fwe", bpe4k, shared, profile=profile):
            assert s.input.startswith("Read the following coded text")
            assert s.length <= 4096


def test_index_is_not_an_id_but_row_is(shared: Path, bpe4k: Tokenizer) -> None:
    samples = make("niah_multikey_3", bpe4k, shared, length=1024, samples=60)
    assert len({s.index for s in samples}) < 60
    assert len({s.row for s in samples}) == 60


def test_order_of_tasks_does_not_matter(shared: Path, bpe4k: Tokenizer) -> None:
    tasks = ["vt", "cwe", "niah_single_2", "qa_1", "fwe"]
    before = {t: [s.to_json() for s in make(t, bpe4k, shared, samples=2)] for t in tasks}
    random.seed(1)
    for t in reversed(tasks):
        assert [s.to_json() for s in make(t, bpe4k, shared, samples=2)] == before[t]


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multivalue", "niah_multikey_2", "niah_single_1"])
def test_needles_occur_once(shared: Path, bpe4k: Tokenizer, task: str) -> None:
    for s in make(task, bpe4k, shared, samples=10):
        for answer in s.outputs:
            assert s.input.count(answer) == 1
        assert s.validity.evidence_present
        assert not s.validity.answers_elsewhere
        assert len(s.validity.evidence_tokens) == len(s.outputs)
        assert all(0 < n < s.validity.prompt_tokens for n in s.validity.evidence_tokens)


def test_noise_sentences_stand_on_lines_of_their_own(shared: Path, bpe4k: Tokenizer) -> None:
    (sample,) = make("niah_single_1", bpe4k, shared, samples=1)
    lines = sample.input.split("\n")[1:-1]
    assert all(line == NOISE or line.startswith("One of the special magic") for line in lines)
    (sample,) = make("vt", bpe4k, shared, samples=1)
    body = sample.input.rsplit("following text.\n\n", 1)[1].split("\nQuestion")[0]
    assert all(line == NOISE or line.startswith("VAR ") for line in body.split("\n"))


def test_vt_prefix_ends_in_a_space_as_its_example_shows(shared: Path, bpe4k: Tokenizer) -> None:
    """The example writes two spaces before its answer, so " YGE" after the prefix's space is what a model has seen:
    the prompt's ids are a beginning of those of prompt and answer."""
    for s in make("vt", bpe4k, shared, samples=3):
        assert s.answer_prefix.endswith("they are: ")
        assert "they are:  " in s.input
        whole = bpe4k.encode(s.prompt + " " + " ".join(s.outputs))
        ids = bpe4k.encode(s.prompt)
        assert whole[: len(ids)] == ids


def test_dropped_prefix(shared: Path, bpe4k: Tokenizer) -> None:
    (with_it,) = make("qa_1", bpe4k, shared, samples=1)
    (without,) = make("qa_1", bpe4k, shared, samples=1, answer_prefix="drop")
    assert without.prompt == with_it.input
    assert json.loads(without.to_json())["answer_prefix"] == ""
    assert without.validity.prompt_tokens == len(bpe4k.encode(without.prompt)) < with_it.validity.prompt_tokens


@pytest.mark.parametrize(
    ("task", "length"),
    [("niah_single_2", 600), ("cwe", 512), ("vt", 512), ("niah_multikey_3", 512), ("qa_1", 1024), ("fwe", 180)],
)
def test_too_short_names_the_minimum(shared: Path, bpe4k: Tokenizer, task: str, length: int) -> None:
    """Upstream loops for ever."""
    for profile in ("nvidia", "fair"):
        with pytest.raises(GatedevalError, match="the length must be at least ") as caught:
            make(
                task,
                bpe4k,
                shared,
                length=length if profile == "nvidia" else 130 + (task == "cwe") * 100,
                samples=1,
                profile=profile,
            )
        assert int(str(caught.value).split("at least ")[1].split()[0]) > length * (profile == "nvidia")
    with pytest.raises(GatedevalError, match="the length must be at least ") as caught:
        make(task, bpe4k, shared, length=ANSWER_TOKENS[task] + 32, samples=1)
    minimum = int(str(caught.value).split("at least ")[1].split()[0])
    with pytest.raises(GatedevalError):
        make(task, bpe4k, shared, length=minimum - 60, samples=1)
    make(task, bpe4k, shared, length=minimum + 60, samples=1)


def test_hotpotqa_step_below_its_own_documents(shared: Path, bpe4k: Tokenizer) -> None:
    with pytest.raises(GatedevalError, match="6 documents wanted, the question of row 0 has 10"):
        make("qa_2", bpe4k, shared, length=4096)
    assert make("qa_2", bpe4k, shared, length=4096, samples=2, profile="fair")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "niah"}, "no task 'niah'"),
        ({"length": 100}, "the answer alone"),
        ({"samples": -1}, "negative"),
        ({"profile": "own"}, "nvidia or fair"),
        ({"answer_prefix": "yes"}, "append or drop"),
    ],
)
def test_wrong_options(bpe4k: Tokenizer, options: dict[str, Any], message: str) -> None:
    given = {"task": "niah_single_1", "length": 1024, "samples": 1, "tokenizer": bpe4k, **options}
    with pytest.raises(GatedevalError, match=message):
        list(generate(Request(**given)))


def test_nothing_wanted_nothing_read(bpe4k: Tokenizer, tmp_path: Path) -> None:
    assert list(generate("qa_1", tokenizer=bpe4k, length=4096, samples=0, data=tmp_path)) == []


def test_missing_files_are_named(bpe4k: Tokenizer, tmp_path: Path) -> None:
    for task, names in {
        "niah_single_2": "PaulGrahamEssays.json",
        "qa_1": "dev-v2.0.json",
        "qa_2": "hotpot_dev",
    }.items():
        with pytest.raises(GatedevalError, match=names):
            list(generate(task, tokenizer=bpe4k, length=4096, samples=1, data=tmp_path))


def test_odd_data(shared: Path, bpe4k: Tokenizer, tmp_path: Path) -> None:
    """Empty essays, SQuAD without answers, essays of other scripts, JSON lines, gzip under a plain name."""
    punkt = DataFolder(shared / "data").find("punkt").path
    empty, plain, lines = tmp_path / "empty.json", tmp_path / "essay.json", tmp_path / "essay.jsonl"
    empty.write_text('{"text": " \\n "}')
    with pytest.raises(GatedevalError, match="empty"):
        list(
            generate(
                "niah_single_2",
                tokenizer=bpe4k,
                length=2048,
                samples=1,
                data=DataFolder(None, {"essays": empty, "punkt": punkt}),
            )
        )
    text = "Привет, мир. Ça va? 日本語の文。 Naïve café — “ja”! " * 400
    plain.write_bytes(gzip.compress(json.dumps({"text": text}).encode()))
    lines.write_text(json.dumps({"text": text}) + "\n")

    def made(file: Path, counting: str = "auto") -> list[str]:
        folder = DataFolder(None, {"essays": file, "punkt": punkt})
        return [
            s.to_json()
            for s in generate(
                "niah_multivalue", tokenizer=bpe4k, length=8192, samples=3, data=folder, counting=counting
            )
        ]  # type: ignore[arg-type]

    assert made(plain) == made(lines) == made(plain, "whole")
    squad = tmp_path / "squad.json"
    squad.write_text(
        json.dumps(
            {
                "data": [
                    {
                        "title": "t",
                        "paragraphs": [
                            {"context": "c", "qas": [{"question": "q", "is_impossible": True, "answers": []}]}
                        ],
                    }
                ]
            }
        )
    )
    with pytest.raises(GatedevalError, match="no answerable question"):
        list(generate("qa_1", tokenizer=bpe4k, length=2048, samples=1, data=DataFolder(None, {"squad": squad})))
    squad.write_text("[1]")
    with pytest.raises(GatedevalError, match="SQuAD's layout"):
        list(generate("qa_1", tokenizer=bpe4k, length=2048, samples=1, data=DataFolder(None, {"squad": squad})))


def test_more_samples_than_questions(shared: Path, bpe4k: Tokenizer) -> None:
    with pytest.raises(GatedevalError, match="501 samples wanted, its data has 500 questions"):
        next(generate("qa_2", tokenizer=bpe4k, length=8192, samples=501, data=shared / "data"))


def test_more_needles_than_depths(shared: Path, bpe4k: Tokenizer) -> None:
    from tasks.ruler.haystack import load_essay

    settings = {**SETTINGS["niah_single_2"], "num_k": 41}
    niah = Niah(settings, 16384, 16000, Counter(bpe4k), Draws(42), load_essay(DataFolder(shared / "data")))
    with pytest.raises(Rejected, match="41 needles, but there are 40 depths"):
        niah.draw(2000, 0)


def test_large_word_list_is_named_where_it_is_needed(shared: Path, bpe4k: Tokenizer, tmp_path: Path) -> None:
    """131,072 does without, beyond about 216,000 it is needed. A Git LFS pointer is not the list."""
    assert make("cwe", bpe4k, shared, length=131_072, samples=1)[0].length <= 131_072
    with pytest.raises(GatedevalError, match=r"english_words\.json"):
        make("cwe", bpe4k, shared, length=262_144, samples=1)
    pointer = tmp_path / "english_words.json"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(GatedevalError, match="Git LFS pointer"):
        list(
            generate(
                "cwe",
                tokenizer=bpe4k,
                length=262_144,
                samples=1,
                data=DataFolder(shared / "data", {"english_words": pointer}),
            )
        )
    pointer.write_text(json.dumps({str(i): f"word{i}" for i in range(40_000)}))
    folder = DataFolder(shared / "data", {"english_words": pointer})
    (sample,) = generate("cwe", tokenizer=bpe4k, length=262_144, samples=1, data=folder)
    assert 0.8 * 262_144 < sample.length <= 262_144  # (these made-up words are longer than real ones)
    assert sample.length == bpe4k.count(sample.prompt) + 120


def test_a_million_tokens(shared: Path, bpe4k: Tokenizer) -> None:
    """No ceiling: the essays start again at their end, as upstream's do."""
    (sample,) = make("niah_single_2", bpe4k, shared, length=1_048_576, samples=1)
    assert 0.99 * 1_048_576 < sample.length <= 1_048_576
    assert sample.validity.counted == "pieces, checked"
    assert sample.input.count("July 2010What hard liquor") >= 1


def test_five_digits_are_those_of_numpy_for_every_seed() -> None:
    """The values that numpy's legacy generator has always drawn; a seed beyond 32 bits is cut to them."""
    drawn = {seed: Draws(seed) for seed in (0, 42, 2**33 + 5, -3)}
    assert {seed: [draws.five_digits() for _ in range(5)] for seed, draws in drawn.items()} == {
        0: [78268, 53567, 52613, 55891, 31243],
        42: [25795, 10860, 86820, 64886, 16265],
        2**33 + 5: [45683, 28638, 30463, 15520, 69465],
        -3: [10885, 79580, 74006, 64964, 40521],
    }
    assert all(10000 <= Draws(seed, fixed=False).five_digits() <= 99999 for seed in range(100))


def test_words_and_constants() -> None:
    assert (len(key_words()), len(all_words())) == (6_171_620, 8_166)
    assert len(DEPTHS) == 40
    import numpy as np
    from scipy.special import zeta

    assert list(np.round(np.linspace(0, 100, num=40)).astype(int)) == DEPTHS
    assert zeta(2.0) == _ZETA_2 == math.pi**2 / 6
    keys, rng = key_words(), random.Random(2)
    full = sorted({f"{a}-{n}" for a in word_list("adjective")[:60] for n in word_list("noun")})
    part = type(keys)(word_list("adjective")[:60], word_list("noun"))
    assert len(part) == len(full)
    assert all(part[i] == full[i] for i in (0, len(full) - 1, *(rng.randrange(len(full)) for _ in range(5000))))
    mixed = type(keys)(["well", "well-made", "a", "ab"], ["made-up", "x", "z", "made"])
    assert list(mixed) == sorted(
        {f"{a}-{n}" for a in ["well", "well-made", "a", "ab"] for n in ["made-up", "x", "z", "made"]}
    )
    with pytest.raises(IndexError):
        keys[len(keys)]


def test_another_wonderwords_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.ruler import words

    monkeypatch.setattr(words, "VERSION", "2.2.0")
    words.word_list.cache_clear()
    with pytest.raises(GatedevalError, match=r"wonderwords 2.2.0, not of 3.0.1"):
        words.word_list("noun")
    words.word_list.cache_clear()


def test_common_words_listed() -> None:
    """What an entry of the list is, without building the list."""
    listed = CommonWords.__module__ and __import__("tasks.ruler.common_words", fromlist=["Listed"]).Listed
    made = listed(["a", "b", "c", "d"], 2, 3, 2, Draws(1).order(10))
    assert [made.entry(i) for i in range(10)] == made.entries()


def test_import_is_light() -> None:
    code = (
        "import sys, time; t = time.process_time(); import tasks.ruler; used = time.process_time() - t; "
        "heavy = {'torch', 'vllm', 'transformers', 'nltk', 'numpy', 'scipy', 'datasets'} & set(sys.modules); "
        "assert not heavy, heavy; assert used < 0.3, used"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("profile", ["nvidia", "fair"])
def test_a_smaller_answer_budget_leaves_more_for_the_prompt(shared: Path, bpe4k_bos: Tokenizer, profile: str) -> None:
    for s in make("niah_single_1", bpe4k_bos, shared, length=512, samples=5, profile=profile, answer_tokens=16):
        tokens = len(bpe4k_bos.encode(s.prompt))
        assert (s.validity.answer_tokens, s.validity.length, s.validity.prompt_tokens) == (16, 512, tokens)
        assert 0.9 * 512 < tokens + 16 <= 512 + (profile == "nvidia")  # upstream does not count the BOS
        assert s.length == tokens - 1 + 16
    own = [s.to_json() for s in make("vt", bpe4k_bos, shared, length=2048, profile=profile)]
    assert own == [s.to_json() for s in make("vt", bpe4k_bos, shared, length=2048, profile=profile, answer_tokens=30)]
    with pytest.raises(GatedevalError, match="at least 1"):
        make("vt", bpe4k_bos, shared, answer_tokens=0)
    with pytest.raises(GatedevalError, match="may take 600 tokens"):
        make("vt", bpe4k_bos, shared, length=600, answer_tokens=600)
    with pytest.raises(GatedevalError, match=r"answer are \d+ more than the model's limit"):
        make("niah_single_1", bpe4k_bos, shared, length=512, profile=profile, answer_tokens=16, max_model_len=400)


BEFORE = {  # sha256 of 40 fair samples, from the version that knew no essay of fewer than 50 words
    ("niah_single_1", 448): "36335b6ef2",
    ("niah_single_2", 350): "e695dd7842",
    ("niah_single_3", 448): "cbe68cdde8",
    ("niah_multikey_1", 448): "cf49c5b511",
    ("niah_multikey_2", 448): "531e66d2e6",
    ("niah_multivalue", 512): "2953d0e34b",
    ("niah_multiquery", 512): "1eb370d982",
}


@pytest.mark.parametrize(("task", "length"), BEFORE)
def test_shorter_haystacks_change_no_sample_that_was_possible_before(
    shared: Path, bpe4k: Tokenizer, task: str, length: int
) -> None:
    made = make(task, bpe4k, shared, length=length, samples=40, profile="fair")
    digest = hashlib.sha256("".join(s.to_json() for s in made).encode()).hexdigest()
    assert digest.startswith(BEFORE[task, length])
    shorter = length - 80  # too short for that version: now fewer words or lines, everything in place, well filled
    for s in make(task, bpe4k, shared, length=shorter, samples=5, profile="fair", answer_tokens=100):
        assert as_it_should_be(s)
        assert s.validity.prompt_tokens + 100 > 0.87 * shorter
