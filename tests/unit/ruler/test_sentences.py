"""Sentence boundaries equal NLTK's, on real text, on every prefix, and on text made to be awkward."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.data.files import read_json
from harness.data.folder import DataFolder
from tasks.ruler.haystack import Essay, essay_text, load_essay
from tasks.ruler.sentences import Punkt

_BITS = [
    *("aB.", ".", "..", "...", "?!", '"', "'", "(", ")", "”", "“", "Mr.", "J.", "3.", "1.5", "--", "etc.", "e.g."),
    *("U.S.", "The", "the", ",", ";", ":", "]", "}"),
]


@pytest.fixture(scope="module")
def punkt(shared: Path) -> Punkt:
    return Punkt(DataFolder(shared / "data").find("punkt").path)


@pytest.fixture(scope="module")
def nltk_spans(shared: Path) -> object:
    import nltk
    from nltk.tokenize.punkt import PunktTokenizer

    nltk.data.path.insert(0, str(shared / "data" / "nltk_data"))
    tokenizer = PunktTokenizer("english")
    return lambda text: list(tokenizer.span_tokenize(text))


def test_essays_and_squad(shared: Path, punkt: Punkt, nltk_spans: object) -> None:
    essay = load_essay(DataFolder(shared / "data"))
    text = essay.text(120_000)
    assert punkt.spans(text) == nltk_spans(text)  # type: ignore[operator]
    raw = essay_text(DataFolder(shared / "data").find("essays").path)[:300_000]
    assert punkt.spans(raw) == nltk_spans(raw)  # type: ignore[operator]
    squad = read_json(DataFolder(shared / "data").find("squad").path)
    text = "\n".join(p["context"] for a in squad["data"][:12] for p in a["paragraphs"])
    assert punkt.spans(text) == nltk_spans(text)  # type: ignore[operator]


def test_awkward_text(punkt: Punkt, nltk_spans: object) -> None:
    rng = random.Random(3)
    bits = _BITS
    for _ in range(4000):
        text = "".join(rng.choice(bits) + rng.choice(["", " ", " ", "  ", "\n"]) for _ in range(rng.randint(1, 25)))
        assert punkt.spans(text) == nltk_spans(text), repr(text)  # type: ignore[operator]


def _reference(words: list[str], n: int) -> str:
    rounds = -(-n // len(words))
    return " ".join((words * rounds)[:n]).strip()


def test_sentences_of_every_prefix(shared: Path, punkt: Punkt) -> None:
    """What is kept between calls changes nothing: also beyond the text's end, where it starts again."""
    essay = load_essay(DataFolder(shared / "data"))
    rng, total = random.Random(5), len(essay.words)
    sizes = [1, 2, 500, *(rng.randint(1, 30_000) for _ in range(120)), total - 1, total, total + 1, total + 700]
    for n in sizes:
        text = _reference(essay.words, n)
        assert essay.text(n) == text
        assert [essay.slice(a, b) for a, b in essay.sentences(n)] == [text[a:b] for a, b in punkt.spans(text)], n


@pytest.mark.parametrize(
    "text", ['  Foo bar. Baz qux (etc.) "No." yes.\n', "word " * 2000, "Один. Два. 三。四。 Été? Oui! Non.", "x"]
)
def test_small_odd_texts(punkt: Punkt, text: str) -> None:
    essay = Essay(text, punkt)
    for n in [*range(1, 40), 1999, 2000, 2001, 4500]:
        expected = _reference(essay.words, n)
        assert essay.text(n) == expected
        assert [essay.slice(a, b) for a, b in essay.sentences(n)] == [
            expected[a:b] for a, b in punkt.spans(expected)
        ], n
