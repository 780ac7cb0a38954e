"""Piecewise counts equal whole encodes on every kind of tokenizer, or whole encodes are used."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers, processors

from harness.models.tokenizer import Tokenizer
from tasks.ruler import TASKS, generate, load_tokenizer
from tasks.ruler.counting import Counter
from tasks.ruler.rules import PROBES, single_digits, splits_runs

KINDS = ["qwen", "gpt2", "llama", "unigram", "unigram_plain"]
_WORDS = [
    *("The", "co-op.", "12,", "3.5%", "(a)", "'tis", "“Été”", "Ünïcode", "x_y", "-", "…", "中文", "é", "..."),
    *("a1b2", "\u00a0nb", "\ttab", "e\u0301"),
]
Made = Callable[[str], Tokenizer]


@pytest.mark.parametrize("kind", KINDS)
def test_these_keep_the_rule(made: Made, kind: str) -> None:
    counter = Counter(made(kind))
    assert counter.why_whole is None
    for text in PROBES:
        assert counter.text(text) == made(kind).count(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_same_samples_as_with_whole_encodes(shared: Path, made: Made, kind: str, task: str) -> None:
    length = {"qa_2": 12288, "qa_1": 6144}.get(task, 4096)

    def lines(counting: str) -> list[tuple[str, list[int]]]:
        samples = generate(
            task,
            tokenizer=made(kind),
            length=length,
            samples=2,
            data=shared / "data",
            counting=counting,  # type: ignore[arg-type]
        )
        return [(s.to_json(), s.validity.evidence_tokens if kind not in ("llama", "unigram") else []) for s in samples]

    assert lines("piecewise") == lines("whole")


def test_random_texts(made: Made) -> None:
    """Texts of words, numbers, punctuation, odd spacing and letters of several scripts."""
    rng = random.Random(7)
    words = _WORDS
    for kind in KINDS:
        counter = Counter(made(kind))
        for _ in range(300):
            text = ""
            for _ in range(rng.randint(1, 12)):
                text += rng.choice(words) + rng.choice([" ", " ", " ", "\n", "\n\n", " \n", "  "])
            text += "end"
            assert counter.text(text) == made(kind).count(text), (kind, text)


@pytest.mark.parametrize("kind", ["qwen", "gpt2"])
def test_keys_and_values_by_runs(made: Made, kind: str) -> None:
    tokenizer = made(kind)
    assert splits_runs(tokenizer)
    assert single_digits(tokenizer) == (kind == "qwen")
    counter, rng = Counter(tokenizer), random.Random(1)
    keys = ["wet-lollipop", "contact-lens", "co-op-x-ray", "big-ice cream"]
    assert counter.halves(keys) == tokenizer.count("a " + " ".join(keys) + " a") - tokenizer.count("a a")
    uuids = " ".join(
        f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-{rng.getrandbits(48):012x}" for _ in range(40)
    )
    assert counter.runs(f" {uuids}") == tokenizer.count(f"a {uuids} a") - tokenizer.count("a a")


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3", "niah_multivalue", "cwe", "qa_1"])
def test_caches_that_overflow_change_nothing(
    shared: Path, made: Made, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    def lines() -> list[str]:
        samples = generate(task, tokenizer=made("qwen"), length=4096, samples=5, data=shared / "data")
        return [s.to_json() for s in samples]

    expected = lines()
    monkeypatch.setattr("tasks.ruler.counting._CACHE", 3)
    assert lines() == expected


def test_tokens_that_cross_words_mean_whole_encodes(shared: Path, made: Made) -> None:
    tokenizer = made("crossing")
    assert "cross from a word" in (Counter(tokenizer).why_whole or "")
    assert any("whole prompts are encoded" in note for note in tokenizer.notes)
    sample = next(generate("niah_single_1", tokenizer=tokenizer, length=1024, samples=1, data=shared / "data"))
    assert sample.length == tokenizer.count(sample.prompt) + 128
    assert sample.validity.counted == "whole"


def test_a_miscount_is_found_and_everything_done_again(shared: Path, bpe4k: Tokenizer) -> None:
    """A tokenizer whose rule was taken for proven, wrongly: the first sample's check finds it, the bytes stay right."""
    wrong = load_tokenizer(Fast.from_str(_crossing_json()))
    wrong.facts.update(rule=None)

    def lines(tokenizer: Tokenizer, counting: str) -> list[str]:
        samples = generate(
            "niah_single_1",
            tokenizer=tokenizer,
            length=1024,
            samples=3,
            counting=counting,  # type: ignore[arg-type]
        )
        return [s.to_json() for s in samples]

    assert lines(wrong, "auto") == lines(wrong, "whole")
    assert any("its pieces make" in note for note in wrong.notes)


def _crossing_json() -> str:
    from tests.support import tokenizers as tokenizers_made

    return tokenizers_made.crossing().to_str()


def test_offsets_are_those_of_the_ids_as_sent(shared: Path, bpe4k_bos: Tokenizer) -> None:
    """The evidence's token offset, counted in pieces, points at the token that starts the needle."""
    for task in ("niah_single_2", "niah_multikey_2", "niah_multivalue", "vt", "qa_1", "qa_2"):
        samples = generate(task, tokenizer=bpe4k_bos, length=8192, samples=2, data=shared / "data")
        for sample in samples:
            ids = bpe4k_bos.encode(sample.prompt)
            for offset in sample.validity.evidence_tokens:
                text = bpe4k_bos.fast.decode(ids[offset : offset + 6], skip_special_tokens=False).lstrip()
                assert text.startswith(("One of the", "VAR ", "Document ")), (task, text)


class _Slow:
    """A tokenizer of another library: one token per character, no special tokens, no offsets."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]


def test_a_tokenizer_without_fast_implementation(shared: Path) -> None:
    tokenizer = load_tokenizer(_Slow())
    sample = next(generate("niah_single_1", tokenizer=tokenizer, length=4096, samples=1))
    assert sample.length == len(sample.prompt) + 128 <= 4096
    assert sample.validity.counted == "whole"
    assert sample.prompt[sample.validity.evidence_tokens[0] :].startswith("One of the special magic numbers")
    assert tokenizer.prefix_ids == ()


def test_bos_once_and_eos_never(bpe4k: Tokenizer, bpe4k_bos: Tokenizer) -> None:
    bos = bpe4k_bos.fast.token_to_id("<|bos|>")
    assert bpe4k.prefix_ids == ()
    assert bpe4k_bos.encode("Hello") == [bos, *bpe4k.encode("Hello")]
    assert bpe4k_bos.encode("<|bos|>Hello") == [bos, *bpe4k.encode("Hello")], (
        "a text that brings its own gets no second"
    )
    from tests.support import tokenizers as tokenizers_made

    eos = load_tokenizer(tokenizers_made.unigram(eos=True))
    assert eos.suffix_ids
    assert eos.fast.token_to_id("</s>") not in eos.encode("Hello there")


def test_padding_and_truncation_of_a_tokenizer_file_are_ignored() -> None:
    made = Fast(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    made.enable_truncation(4)
    made.enable_padding(length=16)
    assert load_tokenizer(made).count("a " * 10) == 10
