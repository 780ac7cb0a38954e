"""The words of cwe beyond wonderwords' 8,166: which file is wanted, another list, and combined words."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config import load
from harness.data.folder import DataFolder
from harness.run.plan import build
from harness.types import GatedevalError
from tasks.ruler import Request, generate
from tasks.ruler.common_words import words_of_file
from tasks.ruler.words import all_words

LENGTH = 230_000
"""Tokens; the list of the tiny tokenizer needs more than 8,166 words here."""


def request(made: Any, **more: Any) -> Request:
    facts = {
        "task": "cwe",
        "tokenizer": made,
        "length": LENGTH,
        "samples": 1,
        "data": DataFolder(Path(__file__).parent),
    }
    return Request(**{**facts, **more})


def test_combined_words_fill_a_length_beyond_the_known_words(bpe4k: Any) -> None:
    [sample] = generate(request(bpe4k, profile="fair", words="combined"))
    tokens = len(bpe4k.encode(sample.prompt))
    assert LENGTH * 0.99 < tokens + 120 <= LENGTH
    listed = {word for word in sample.prompt.split("\n")[-2].split() if not word.rstrip(".").isdigit()}
    assert len(listed) > len(all_words())
    assert set(sample.outputs) <= listed
    assert len(set(sample.outputs)) == 10
    pairs = [word for word in listed if "-" in word and word not in set(all_words())]
    assert pairs, "adjective-noun pairs are among them"


def test_what_is_missing_is_named_with_what_else_can_be_done(bpe4k: Any) -> None:
    with pytest.raises(GatedevalError) as error:
        list(generate(request(bpe4k)))
    for part in ("english_words.json", "8,166", "word_list: FILE", "word_list: combined", "profile: fair"):
        assert part in str(error.value)
    with pytest.raises(GatedevalError, match="use it with profile fair"):
        request(bpe4k, words="combined")


def test_another_list_is_used_and_its_mistakes_have_a_place(bpe4k: Any, tmp_path: Path) -> None:
    words = ["".join(letters) for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3)]
    file = tmp_path / "words.txt"
    file.write_text("\n".join([*words, words[0], ""]))
    assert words_of_file(file) == tuple(dict.fromkeys(words))
    [sample] = generate(request(bpe4k, words=str(file)))
    assert set(sample.outputs) <= set(words)
    as_json = tmp_path / "words.json"
    as_json.write_text(json.dumps({"0": "one", "1": "two"}))
    assert words_of_file(as_json) == ("one", "two")
    short = tmp_path / "short.txt"
    short.write_text("one\ntwo\n")
    with pytest.raises(GatedevalError, match="2 known"):
        list(generate(request(bpe4k, words=str(short))))
    for text, said in (("one\ntwo words\n", "entry 2 is 'two words', not one word"), ("", None)):
        wrong = tmp_path / f"wrong{len(text)}.txt"
        wrong.write_text(text)
        if said is None:
            assert words_of_file(wrong) == ()
        else:
            with pytest.raises(GatedevalError, match=said):
                words_of_file(wrong)


def test_in_a_config(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n".join(f"word{i}" for i in range(30_000)))

    def plan(**entry: Any) -> Any:
        facts = {
            "name": "n",
            "models": [{"label": "m", "path": str(tiny / "baseline")}],
            "contexts": [{"label": "long", "rope_theta": 1e6, "max_length": LENGTH}],
            "benchmarks": [{"ruler": ["cwe"], "lengths": [LENGTH], "samples": 1, **entry}],
        }
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(facts))
        return build(load(tmp_path / "c.yaml"))

    made = plan(word_list="mine.txt")
    assert made.refusals == []
    assert made.config.benchmarks[0].word_list == str(tmp_path / "mine.txt")
    with pytest.raises(GatedevalError, match=r"no file 'other.txt'"):
        plan(word_list="other.txt")
    with pytest.raises(GatedevalError, match="combined is not upstream's list"):
        plan(word_list="combined")
    with pytest.raises(GatedevalError, match="should be a file"):
        plan(word_list="nouns")
    [refusal] = plan().refusals
    assert "english_words.json" in refusal
    assert plan(word_list="combined", profile="fair").refusals == []
