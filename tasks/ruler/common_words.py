"""Common words: a numbered list in which ten words occur more often than the others; which ten?

A solved example of 40 words comes first. cwe, at 4096 tokens:

    Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear
    most often.
    1. confidence 2. tab 3. confidence 4. impairment 5. seabass 6. chip 7. athlete 8. community 9. TV 10. TV [...]
    Question: What are the 10 most common words in the above list? Answer: The top 10 words that appear most often in
    the list are: 1. [...]
    Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear
    most often.
    1. [...] 336. definition 337. association 338. artichoke 339. eddy 340. mighty 341. chronometer 342. asphalt
    Question: What are the 10 most common words in the above list? Answer: The top 10 words that appear most often in
    the list are:

Answers: eddy, definition, mighty, conclude, association, artichoke, brow, chronometer, build, burial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from harness.data.files import read_json, read_text, text_in
from harness.data.folder import DataFolder
from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Text, split_prompt, whole_tokens
from tasks.ruler.fit import Rejected, find_size
from tasks.ruler.protocol import FAMILIES
from tasks.ruler.rules import single_digits
from tasks.ruler.words import all_words, key_words

_STRINGS = FAMILIES["cwe"]
_FIRST = 4096
"""Words of the first text of the size search."""


@dataclass(frozen=True)
class Listed:
    """One list: its distinct words (the common ones first), how often each word of a kind occurs, and the order."""

    words: list[str]
    common: int
    often: int
    seldom: int
    order: Sequence[int]

    def entries(self) -> list[str]:
        """The words as listed."""
        pool = self.words[: self.common] * self.often + self.words[self.common :] * self.seldom
        return [pool[i] for i in self.order]

    def entry(self, at: int) -> str:
        """The word at one place of the list."""
        i, many = self.order[at], self.common * self.often
        rest = max(len(self.words) - self.common, 1)
        return self.words[i % self.common] if i < many else self.words[self.common + (i - many) % rest]


@dataclass(frozen=True)
class WordsDraft:
    """The draws of one text: the worked example's list and the real one."""

    example: Listed
    real: Listed


class CommonWords(Family):
    """The task at one length. Unit: distinct words."""

    step = 10

    def __init__(
        self,
        settings: Mapping[str, Any],
        length: int,
        limit: int,
        counter: Counter,
        draws: Draws,
        more_words: Callable[[], Sequence[str]] | None,
    ) -> None:
        """`more_words`: the list for more words than wonderwords has; None: its words and its adjective-noun pairs."""
        self.limit, self.counter, self.draws, self._more = limit, counter, draws, more_words
        self.num_common = settings["num_cw"]
        if length < 4096:
            self._example, self._real = (20, 3, 1), (6, 1)
        else:
            self._example, self._real = (40, 10, 3), (settings["freq_cw"], settings["freq_ucw"])
        self._head, self._question = _STRINGS["template"].split("{context}")
        self._prefix = _STRINGS["answer_prefix"]
        self._words = draws.shuffled(all_words()) if draws.fixed else list(all_words())
        self._numbers: list[int] = []

    def _list(self, size: int, often: int, seldom: int) -> Listed:
        words = self._sample(size)
        common = min(self.num_common, size)
        order = self.draws.order(common * often + (size - common) * seldom)
        return Listed(words, common, often, seldom, order)

    def _sample(self, size: int) -> list[str]:
        """So many distinct words, drawn."""
        known, rng = self._words, self.draws.rng
        if size > len(known) and self._more is None:
            # every word, and pairs for the rest: one word more is one pair more, so that the size search is smooth
            return rng.sample([*known, *rng.sample(key_words(), size - len(known))], size)
        pool = known if size <= len(known) or self._more is None else self._more()
        if size > len(pool):
            raise Rejected(f"{size} words wanted, {len(pool)} known", "always")
        return rng.sample(pool, size)

    def draw(self, size: int, row: int) -> WordsDraft:
        """The words of the example, then those of the list."""
        return WordsDraft(self._list(*self._example), self._list(size, *self._real))

    def _between(self, draft: WordsDraft) -> str:
        """What stands between the two lists: the example's question, its solution, the instruction again."""
        solved = " ".join([f"{i}. {w}" for i, w in enumerate(draft.example.words[: draft.example.common], 1)])
        return f"{self._question}{self._prefix} {solved}\n{self._head}"

    def render(self, draft: WordsDraft) -> Text:
        """The prompt and the common words in drawing order. No place holds the answer: the whole list does."""
        lists = [" ".join([f"{i}. {w}" for i, w in enumerate(x.entries(), 1)]) for x in (draft.example, draft.real)]
        prompt = self._head + lists[0] + self._between(draft) + lists[1] + self._question + self._prefix
        answers = draft.real.words[: draft.real.common]
        solved = draft.example.words[: draft.example.common]
        complete = len(answers) == self.num_common and all(f" {w}" in lists[1] for w in answers)
        elsewhere = len(answers) if set(answers) <= set(solved) else 0  # the example's solution would be the answer
        return Text(*split_prompt(prompt, self._prefix), answers, complete=complete, elsewhere=elsewhere)

    def smallest(self, row: int) -> int:
        """The common words and another one."""
        return 11

    def search(self, length: int) -> int:
        """Upstream's search, from 4,096 words."""
        return find_size(
            lambda size: self.draw(size, 0), self.tokens,
            length=length, limit=self.limit, start=self.step, first=_FIRST, tight=True,
        )  # fmt: skip

    def tokens(self, draft: WordsDraft) -> int:
        """Tokens of the prompt: each distinct word and each number once."""
        if not self.counter.piecewise:
            return whole_tokens(self.counter, self.render(draft))
        ends, bulk = [], 0
        for listed in (draft.example, draft.real):
            last = len(listed.order)
            first, final = listed.entry(0), listed.entry(last - 1)
            ends.append(f"1. {first} {last}. {final}")
            words = [f" {w}" for w in listed.words]
            bulk += self.counter.inner(words[: listed.common]) * listed.often
            bulk += self.counter.inner(words[listed.common :]) * listed.seldom
            bulk += self._number_tokens(last - 1) - self.counter.inner([f" {first}", f" {final}"])
        return bulk + self.counter.text(
            self._head + ends[0] + self._between(draft) + ends[1] + self._question + self._prefix
        )

    def _number_tokens(self, upto: int) -> int:
        """Tokens of " 2." to " upto."."""
        if len(self._numbers) <= upto:
            known = len(self._numbers)
            numbers = [f" {i}." for i in range(max(known, 2), max(upto, 2 * known) + 1)]
            if single_digits(self.counter.tokenizer):
                base = self.counter.inner([" 1."]) - 3
                counts = [base + len(n) for n in numbers]
            else:
                counts = self.counter.measure(numbers, "space", "space")
            before = self._numbers or [0, 0]
            self._numbers = before + list(accumulate(counts, initial=before[-1]))[1:]
        return self._numbers[upto]


def more_words(data: DataFolder, name: str | None) -> Sequence[str]:
    """The word list for more than 8,166 distinct words: a file that `name` names, else upstream's.

    Raises:
        GatedevalError: the list is not there, or is no list of words.
    """
    return english_words(data) if name is None else words_of_file(Path(name))


def english_words(data: DataFolder) -> list[str]:
    """Upstream's large English word list.

    Raises:
        GatedevalError: the list is not in the data folder, or is not an object of words.
    """
    try:
        path = data.find("english_words").path
    except GatedevalError as error:
        raise GatedevalError(
            f"RULER cwe needs more than 8,166 distinct words at this length: {error}; or name another list in the"
            " entry: `word_list: FILE`, or `word_list: combined` with `profile: fair`"
        ) from error
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise GatedevalError(f"{path}: expected NVIDIA/RULER's english_words.json, an object of words")
    return [text_in(value, key, str(path), "english_words.json has a word at every key") for key in value]


@lru_cache(maxsize=2)
def words_of_file(path: Path) -> tuple[str, ...]:
    """The distinct words of a file, in its order: one a line, or (name.json) a list of words or an object of them.

    Raises:
        GatedevalError: the file cannot be read, or has an entry that is no single word.
    """
    if path.suffix == ".json":
        value = read_json(path)
        found = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(found, list):
            raise GatedevalError(f"{path}: expected a JSON list of words, or an object whose values are words")
    else:
        found = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    for number, word in enumerate(found, 1):
        if not isinstance(word, str) or not word or len(word.split()) != 1:
            raise GatedevalError(f"{path}: entry {number} is {word!r}, not one word; a list has one per entry")
    return tuple(dict.fromkeys(found))
