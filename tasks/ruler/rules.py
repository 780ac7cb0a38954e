"""Where the tokens of a tokenizer never cross: what its pre-tokenizer and its vocabulary prove."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from harness.models.tokenizer import Tokenizer
from tasks.ruler.protocol import FAMILIES, NOISE

_CHARACTERS = "aZ09.,:;!?)(]['\"-_/%$é—…”中"
_CROSSING = re.compile(r"\S |\n\S")
_WITH_DIGIT = re.compile(r"^.*[0-9].*$", re.MULTILINE)
_LONE_DIGIT = re.compile(r"[\u0120\u2581 ]?[0-9]")
_JOINED_RUNS = re.compile(r"[A-Za-z0-9][-.]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")

PROBES = (
    "".join(f["template"].replace("{context}", NOISE) + f["answer_prefix"] for f in FAMILIES.values()),
    "One of the special magic numbers for contact lens-x-ray is: 8090293.\n One of it is: 12.  One of it: 9a-3. \nWhat"
    "VAR XYZ = 97498\nVAR ABC = VAR XYZ \n1. word 2. café 3. co-op 10. 11. TV ... ... qpesej ...\nQuestion: (a) 'b'",
    "Document 12:\n“Été” is 1,234.5% (e.g. U.S.)\n\nDocument 13:\nÜber-all [2] x_y/z…\n\nAnswer it — now or 中文 no",
)
"""Texts with every kind of cut, on which pieces and whole texts must agree."""


def broken_rule(tokenizer: Tokenizer, in_pieces: Callable[[str], int]) -> str | None:
    """The reason why tokens may cross from a word or a line into the next; None if they never do. Worked out once.

    Proven by the pre-tokenizer (it splits at every kind of cut) or by the vocabulary (no entry contains a cut); in
    both cases `in_pieces` must count the probe texts as the tokenizer does.
    """
    if "rule" not in tokenizer.facts:
        tokenizer.facts["rule"] = why = _examine(tokenizer, in_pieces)
        _proven(tokenizer)
        if why:
            tokenizer.notes.append(f"whole prompts are encoded (slower, same samples): {why}")
    reason: str | None = tokenizer.facts["rule"]
    return reason


def _examine(tokenizer: Tokenizer, in_pieces: Callable[[str], int]) -> str | None:
    if tokenizer.fast is None:
        return f"{tokenizer.name} is not a tokenizer of the tokenizers library"
    added = [t.content for t in tokenizer.fast.get_added_tokens_decoder().values()]
    crossing = next((t for t in added if _CROSSING.search(t)), None)
    splits = _splits_at_cuts(tokenizer.fast)
    tokenizer.facts["alone"] = splits and _same_alone(tokenizer)
    if crossing is None and not splits:
        crossing = next((t for t in map(_plain, _vocabulary(tokenizer.fast)) if _CROSSING.search(t)), None)
    if crossing is not None:
        return f"{tokenizer.name} has tokens such as {crossing!r}, which cross from a word or line into the next"
    for text in PROBES:
        if in_pieces(text) != tokenizer.count(text):
            return f"{tokenizer.name} counts {text[:40]!r}... differently in pieces"
    return None


def _splits_at_cuts(fast: Any) -> bool:
    """Whether the pre-tokenizer splits at every kind of cut, between all pairs of the characters above."""
    if fast.pre_tokenizer is None:
        return False
    for x in _CHARACTERS:
        for glue in (" ", "\n", " \n", "\n\n"):
            text, cuts = "b", []
            for y in _CHARACTERS:
                text += x + glue
                cuts.append(len(text) - (1 if glue == " " else 0))
                text += y + "b"
            if fast.normalizer is not None and fast.normalizer.normalize_str(text) != text:
                return False  # offsets would no longer be those of the text
            starts = {start for _, (start, _) in fast.pre_tokenizer.pre_tokenize_str(text)}
            # Some pre-tokenizers drop the space they split at: then the next piece starts one later.
            if not all(c in starts or (glue == " " and c + 1 in starts) for c in cuts):
                return False
    return True


def _same_alone(tokenizer: Tokenizer) -> bool:
    """Whether " word" encodes alone as it does between other words: no dummy space in front, nothing stripped."""
    words = [w for text in PROBES for w in re.findall(" [^ \n]+", text)]
    neighbours = tokenizer.count("a a")
    return tokenizer.counts(words) == [n - neighbours for n in tokenizer.counts([f"a{w} a" for w in words])]


def alone(tokenizer: Tokenizer) -> bool:
    """Whether a word with a space before and after it may be encoded without its neighbours."""
    return bool(tokenizer.facts.get("alone"))


def _vocabulary(fast: Any) -> Iterator[str]:
    """The vocabulary's entries as written, without added tokens and byte tokens."""
    added = {t.content for t in fast.get_added_tokens_decoder().values()}
    return (t for t in fast.get_vocab() if t not in added and not (t[0:1] == "<" and _BYTE.fullmatch(t)))


def _plain(token: str) -> str:
    """A vocabulary entry with byte-level's and SentencePiece's signs for space and newline replaced."""
    return token.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n")


def _proven(tokenizer: Tokenizer) -> dict[str, bool]:
    """digits: each is a token of its own; runs: no token joins a letter run, a digit run, or one and `-` or `.`"""
    if "proven" not in tokenizer.facts:
        # One long string: a vocabulary of 150,000 entries is searched in milliseconds. No pattern crosses a newline.
        words = "\n".join(_vocabulary(tokenizer.fast)) if tokenizer.fast is not None else ""
        runs = bool(words) and not _JOINED_RUNS.search(words)
        uniform = len(set(tokenizer.counts([f"a {d}. a" for d in "0123456789"]))) == 1
        digits = runs and uniform and all(_LONE_DIGIT.fullmatch(t) for t in _WITH_DIGIT.findall(words))
        tokenizer.facts["proven"] = {"digits": digits, "runs": runs}
    proven: dict[str, bool] = tokenizer.facts["proven"]
    return proven


def single_digits(tokenizer: Tokenizer) -> bool:
    """Whether a number's tokens follow from its length alone, as each digit is a token of its own."""
    return _proven(tokenizer)["digits"]


def splits_runs(tokenizer: Tokenizer) -> bool:
    """Whether tokens end where letters turn into digits or a word into `-` or `.`: such words are counted by runs."""
    return _proven(tokenizer)["runs"]
