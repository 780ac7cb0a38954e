"""Question answering: the documents of a SQuAD or HotpotQA question among others.

qa_1 (SQuAD), at 2048 tokens:

    Answer the question based on the given documents. Only give me the answer and do not output any other words.

    The following are given documents.

    Document 1:
    Norman architecture typically stands out as a new stage in the architectural history of the regions they [...]

    Document 10:
    At Saint Evroul, a tradition of singing had developed and the choir achieved fame in Normandy. [...]

    Answer the question based on the given documents. Only give me the answer and do not output any other words.

    Question: In what country is Normandy located? Answer:

Answers: France (one annotator is enough).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from harness.data.files import read_rows, text_in
from harness.data.folder import DataFolder
from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Text, split_prompt, whole_tokens
from tasks.ruler.fit import Rejected
from tasks.ruler.protocol import FAMILIES

_STRINGS = FAMILIES["qa"]
_SQUAD = "SQuAD's layout is data[].paragraphs[] with `context` and qas[] of `question` and answers[].text"
_HOTPOTQA = "HotpotQA's rows have `question`, `answer` and `context`, a list of [title, [sentence, ...]]"


@dataclass(frozen=True)
class Question:
    """A question, its gold answers, its own documents, the others of its article; `gold`: those that answer it."""

    query: str
    outputs: list[str]
    own: list[int]
    more: Sequence[int] = ()
    gold: tuple[int, ...] = ()


@dataclass(eq=False)
class Documents:
    """A data set as RULER reads it: distinct documents in sorted order, answerable questions in file order."""

    name: str
    docs: list[str]
    questions: list[Question]
    _counts: WeakKeyDictionary[Counter, dict[int, int]] = field(default_factory=WeakKeyDictionary)

    @lru_cache(maxsize=64)  # noqa: B019  (there are two data sets, cached until the process ends)
    def others(self, left_out: frozenset[int]) -> list[int]:
        """All documents but these, in sorted order."""
        return [i for i in range(len(self.docs)) if i not in left_out]

    def tokens(self, counter: Counter, chosen: list[int]) -> int:
        """Tokens of "Document i:", newline, document, blank line for the chosen documents in this order."""
        known = self._counts.setdefault(counter, {})
        plain = [i for i in dict.fromkeys(chosen) if i not in known and _starts_plainly(self.docs[i])]
        known.update(zip(plain, counter.texts([f"{self.docs[i]}\n\n" for i in plain], "line", "line"), strict=True))
        total = counter.inner(["Document"] * len(chosen))
        total += counter.inner([f" {n}:\n" for n in range(1, len(chosen) + 1)])
        for n, i in enumerate(chosen, 1):
            if i in known:
                total += known[i]
            else:  # white space or an unusual letter may share a token with the newline before it: count both together
                block = counter.measure([f"Document {n}:\n{self.docs[i]}\n\n"], "line", "line")[0]
                total += block - counter.inner(["Document", f" {n}:\n"])
        return total


def _starts_plainly(document: str) -> bool:
    return document[:1].isascii() and document[:1].isalnum()


@dataclass(frozen=True)
class DocumentsDraft:
    """The draws of one text: the question's row and the documents in the order in which they stand."""

    row: int
    chosen: list[int]


class QuestionAnswering(Family):
    """The task at one length. Unit: documents."""

    step = 10

    def __init__(self, data: Documents, limit: int, counter: Counter, draws: Draws) -> None:
        self.data, self.limit, self.counter, self.draws = data, limit, counter, draws
        self._head, self._tail = _STRINGS["template"].split("{context}")
        self._prefix = _STRINGS["answer_prefix"]

    def draw(self, size: int, row: int) -> DocumentsDraft:
        """`size` documents in shuffled order: the question's own, then those of the same article, then others."""
        question, docs, rng = self.data.questions[row], self.data.docs, self.draws.rng
        more = size - len(question.own)  # documents besides the question's own
        if size >= len(docs):
            chosen = [i % len(docs) for i in range(size)]
        elif more > len(question.more):
            others = self.data.others(frozenset([*question.own, *question.more]))
            chosen = [*question.own, *question.more, *rng.sample(others, more - len(question.more))]
        elif more < 0 and not self.draws.fixed and size >= len(question.gold):  # fair: fewer of its own distractors
            rest = [i for i in question.own if i not in question.gold]
            chosen = [*question.gold, *rng.sample(rest, size - len(question.gold))]
        elif more < 0:
            raise Rejected(f"{size} documents wanted, the question of row {row} has {len(question.own)}", "always")
        else:
            chosen = [*question.own, *rng.sample(list(question.more), more)]
        return DocumentsDraft(row, self.draws.shuffled(chosen))

    def smallest(self, row: int) -> int:
        """The documents that answer the row's question."""
        return max(len(self.data.questions[row].gold), 1)

    def _closing(self, draft: DocumentsDraft) -> str:
        return self._tail.replace("{query}", self.data.questions[draft.row].query) + self._prefix

    def render(self, draft: DocumentsDraft) -> Text:
        """The prompt; the evidence are the documents that hold the answer."""
        question = self.data.questions[draft.row]
        blocks = [
            _STRINGS["document"].replace("{i}", str(n), 1).replace("{document}", self.data.docs[i], 1)
            for n, i in enumerate(draft.chosen, 1)
        ]
        prompt = self._head + "\n\n".join(blocks) + self._closing(draft)
        starts = [len(self._head) + n for n in accumulate([len(b) + 2 for b in blocks], initial=0)]
        evidence = [(starts[n], starts[n] + len(blocks[n])) for n, i in enumerate(draft.chosen) if i in question.gold]
        at = next((n for n, i in enumerate(draft.chosen, 1) if i in question.gold), 0)
        return Text(
            *split_prompt(prompt, self._prefix), list(question.outputs), evidence,
            complete=set(question.gold) <= set(draft.chosen), place=(at, len(draft.chosen)),
        )  # fmt: skip

    def offsets(self, draft: DocumentsDraft, text: Text) -> list[int]:
        """Tokens before each gold document."""
        gold = self.data.questions[draft.row].gold
        head = self.counter.before(self._head, "line")
        places = [n for n, i in enumerate(draft.chosen) if i in gold]
        return [head + self.data.tokens(self.counter, draft.chosen[:n]) for n in places]

    def tokens(self, draft: DocumentsDraft) -> int:
        """Tokens of the prompt: each document once."""
        if not self.counter.piecewise:
            return whole_tokens(self.counter, self.render(draft))
        rest = self._head + self._closing(draft).lstrip("\n")
        return self.data.tokens(self.counter, draft.chosen) + self.counter.text(rest)


def read_squad(rows: Sequence[tuple[str, Any]], where: str) -> Documents:
    """SQuAD v2's JSON: documents are its paragraphs; unanswerable questions are left out.

    `rows`: (place, value) of the whole file, or of each of its lines. `where`: the file.

    Raises:
        GatedevalError: a part is missing or no text; the message says which.
    """
    articles = list(_articles(rows))
    docs = sorted({text_in(p, "context", at, _SQUAD) for paragraphs in articles for at, p in paragraphs})
    index = {text: i for i, text in enumerate(docs)}
    questions = []
    for paragraphs in articles:
        here = [index[p["context"]] for _, p in paragraphs]
        for at, paragraph in paragraphs:
            own = index[paragraph["context"]]
            more = [i for i in here if i != own]
            for place, qa in _list_in(paragraph, "qas", at, _SQUAD):
                query = text_in(qa, "question", place, _SQUAD)
                if not qa.get("is_impossible", False) and qa.get("answers"):
                    answers = _list_in(qa, "answers", place, _SQUAD)
                    outputs = [text_in(answer, "text", below, _SQUAD) for below, answer in answers]
                    questions.append(Question(query, outputs, [own], more, (own,)))
    if not questions:
        raise GatedevalError(f"{where}: no answerable question in it; bring SQuAD's dev-v2.0.json")
    return Documents("squad", docs, questions)


def _articles(rows: Sequence[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """(place, paragraph) of each paragraph, article by article."""
    for where, row in rows:
        whole = isinstance(row, dict) and "data" in row
        for at, article in _list_in(row, "data", where, _SQUAD) if whole else [(where, row)]:
            if paragraphs := _list_in(article, "paragraphs", at, _SQUAD):
                yield paragraphs


def _list_in(row: Any, key: str, where: str, what: str) -> list[tuple[str, Any]]:
    """(place, item) of the list `row[key]`. Raises GatedevalError where there is no such list."""
    if not isinstance(row, dict) or not isinstance(row.get(key), list):
        raise GatedevalError(f"{where}: {what}; here is no list {key!r}. Bring the file again")
    return [(f"{where}, {key}[{number}]", item) for number, item in enumerate(row[key])]


def read_hotpotqa(rows: Sequence[tuple[str, Any]], where: str) -> Documents:
    """HotpotQA's distractor rows: a document is its title, a newline and its sentences; all rows are questions.

    `rows`: (place, row). `where`: the file.

    Raises:
        GatedevalError: a part is missing or no text; the message says in which row.
    """
    texts = [_titled(row, at) for at, row in rows]
    docs = sorted({text for row in texts for _, text in row})
    index = {text: i for i, text in enumerate(docs)}
    questions = []
    for (at, row), context in zip(rows, texts, strict=True):
        query, answer = (text_in(row, key, at, _HOTPOTQA) for key in ("question", "answer"))
        facts = row.get("supporting_facts", [])
        if not isinstance(facts, list) or not all(isinstance(fact, list) and fact for fact in facts):
            raise GatedevalError(f"{at}: {_HOTPOTQA}; supporting_facts is no list of [title, sentence number]")
        titles = {fact[0] for fact in facts}
        gold = tuple(index[text] for title, text in context if title in titles)
        questions.append(Question(query, [answer], [index[text] for _, text in context], (), gold))
    if not questions:
        raise GatedevalError(f"{where}: no question in it; bring HotpotQA's hotpot_dev_distractor_v1.json")
    return Documents("hotpotqa", docs, questions)


def _titled(row: Any, where: str) -> list[tuple[str, str]]:
    """(title, document) of a HotpotQA row."""
    found = []
    for at, pair in _list_in(row, "context", where, _HOTPOTQA):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], list):
            raise GatedevalError(f"{at}: {_HOTPOTQA}; this is no [title, [sentence, ...]]: {pair!r:.80}")
        title, sentences = text_in({"title": pair[0]}, "title", at, _HOTPOTQA), pair[1]
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise GatedevalError(f"{at}: {_HOTPOTQA}; a sentence is no text: {sentences!r:.80}. Mend the file")
        text = text_in({"text": f"{title}\n{''.join(sentences)}"}, "text", at, _HOTPOTQA)
        found.append((title, text))
    return found


@lru_cache(maxsize=4)
def _load(name: str, path: Path, sha256: str) -> Documents:
    return (read_squad if name == "squad" else read_hotpotqa)(read_rows(path), str(path))


def load_documents(name: str, data: DataFolder) -> Documents:
    """The documents and questions of `squad` or `hotpotqa`; the same object for files of the same bytes."""
    file = data.find(name)
    return _load(name, file.path, file.sha256)
