"""Variable tracking: a chain of assignments in noise; which variables hold the value of the first?

A solved example of about 500 tokens, with names of three letters, comes first. vt, at 2048 tokens:

    Memorize and track the chain(s) of variable assignment hidden in the following text.

    VAR IWS = 70263
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    [...]
    Memorize and track the chain(s) of variable assignment hidden in the following text.
    [...]
    VAR RVIAW = 54131
    [...]
    VAR GPZAP = VAR RVIAW
    [...]
    VAR URYTF = VAR XEBLN
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    Question: Find all variables that are assigned the value 54131 in the text above. Answer: According to the chain(s)
    of variable assignment in the text above, 5 variables are assigned the value 54131, they are:

Answers: RVIAW, GPZAP, IULZD, XEBLN, URYTF.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from harness.types import GatedevalError
from tasks.ruler.counting import Counter
from tasks.ruler.family import Draws, Family, Text, split_prompt, whole_tokens
from tasks.ruler.fit import Rejected, TooShort, accepted, find_size
from tasks.ruler.protocol import FAMILIES, NOISE

_STRINGS = FAMILIES["vt"]
_EXAMPLE_LENGTH, _EXAMPLE_STEP, _EXAMPLE_VALUE = 500, 5, "12345"


@dataclass(frozen=True)
class ChainDraft:
    """The draws of one text: the names, the value, the line numbers of the assignments, and the worked example."""

    size: int
    names: list[str]
    value: str
    places: list[int]
    example: str = ""


class VariableTracking(Family):
    """The task at one length. Unit: noise lines."""

    def __init__(self, hops: int, length: int, limit: int, counter: Counter, draws: Draws) -> None:
        self.hops, self.limit, self.counter, self.draws = hops, limit, counter, draws
        self.step = 5 if length < 4096 else 10
        self._head, rest = _STRINGS["template"].split("{context}")
        self._prefix = _STRINGS["answer_prefix"].replace("{num_v}", str(hops + 1))
        self._tail = rest + self._prefix
        self._example = self._first_example()

    def _chain(self, size: int, letters: int, value: str | None) -> ChainDraft:
        rng = self.draws.rng
        names = ["".join(rng.choices(string.ascii_uppercase, k=letters)) for _ in range(self.hops + 1)]
        while len(set(names)) < self.hops + 1:
            names.append("".join(rng.choices(string.ascii_uppercase, k=letters)))
        # A name drawn twice: upstream begins a second chain, for which it has too few names, and fails.
        values = [
            str(self.draws.five_digits()) if value is None else value for _ in range(0, len(names), self.hops + 1)
        ]
        if len(values) > 1:
            raise Rejected("a variable name was drawn twice")
        if size < self.hops + 1:
            raise Rejected(f"{size} lines for {self.hops + 1} assignments")
        return ChainDraft(size, names, values[0], sorted(rng.sample(range(size), self.hops + 1)))

    def draw(self, size: int, row: int) -> ChainDraft:
        """Names, value, places; then the names and value of the worked example."""
        draft = self._chain(size, 5, None)
        return ChainDraft(draft.size, draft.names, draft.value, draft.places, self._renamed_example())

    def smallest(self, row: int) -> int:
        """Lines for the assignments, and another one."""
        return 6

    def search(self, length: int) -> int:
        """Upstream's search leaves the example as it is, and adds its tokens to those of the text."""
        counter = self.counter
        example = counter.text(self._example) if counter.piecewise else counter.tokenizer.count(self._example)
        return find_size(
            lambda size: self._chain(size, 5, None), self._body_tokens,
            length=length, limit=self.limit, start=self.step, extra=example,
        )  # fmt: skip

    def _assignments(self, draft: ChainDraft) -> list[str]:
        first = _STRINGS["first"].format(name=draft.names[0], value=draft.value)
        pairs = zip(draft.names[1:], draft.names, strict=False)
        return [first, *(_STRINGS["next"].format(name=name, previous=before) for name, before in pairs)]

    def _body(self, draft: ChainDraft) -> str:
        lines = [NOISE] * draft.size
        for j, (at, assignment) in enumerate(zip(draft.places, self._assignments(draft), strict=True)):
            lines.insert(at + j, assignment)
        return self._head + "\n".join(lines) + self._tail.replace("{query}", draft.value)

    def _first_example(self) -> str:
        """The worked example: the task itself in 500 tokens, with names of 3 letters, solved."""

        def draw(size: int, row: int = 0) -> ChainDraft:
            return self._chain(size, 3, _EXAMPLE_VALUE)

        size = find_size(draw, self._body_tokens, length=_EXAMPLE_LENGTH, limit=_EXAMPLE_LENGTH, start=_EXAMPLE_STEP)
        try:
            draft, _ = accepted(draw, self._body_tokens, limit=_EXAMPLE_LENGTH, size=size, step=_EXAMPLE_STEP, row=0)
        except TooShort as error:  # no length helps: the example's own is fixed
            raise GatedevalError(
                f"RULER vt: its worked example has {_EXAMPLE_LENGTH} tokens, and the smallest one takes"
                f" {error.minimum} with this tokenizer; evaluate this model without vt"
            ) from error
        return self._body(draft) + " " + " ".join(draft.names) + "\n\n"

    def _renamed_example(self) -> str:
        """The example with new names and a new value, so that no sample can be answered from another's example."""
        example = self._example
        for name in example.split()[-(self.hops + 1) :]:
            example = example.replace(name, "".join(self.draws.rng.choices(string.ascii_uppercase, k=len(name))))
        return example.replace(_EXAMPLE_VALUE, str(self.draws.five_digits()))

    def render(self, draft: ChainDraft) -> Text:
        """The prompt; the evidence are the five assignments."""
        whole, prefix = split_prompt(draft.example + self._body(draft), self._prefix)
        evidence = []
        for assignment in self._assignments(draft):
            start = whole.rfind(f"\n{assignment}") + 1
            evidence.append((start, start + len(assignment)))
        elsewhere = draft.example.count(draft.value) + sum(draft.example.count(name) for name in draft.names)
        complete = all(start > 0 for start, _ in evidence)
        return Text(whole, prefix, list(draft.names), evidence, complete=complete, elsewhere=elsewhere)

    def offsets(self, draft: ChainDraft, text: Text) -> list[int]:
        """Tokens before each assignment."""
        noise = self.counter.text(NOISE + "\n", "line", "line")
        lines = self._assignments(draft)
        before = draft.example + self._head
        return [
            at * noise + self.counter.before(before + "".join(f"{x}\n" for x in lines[:j]), "line")
            for j, at in enumerate(draft.places)
        ]

    def _body_tokens(self, draft: ChainDraft, before: str = "") -> int:
        if not self.counter.piecewise:
            return self.counter.tokenizer.count(before + self._body(draft))
        rest = self._head + "\n".join(self._assignments(draft)) + self._tail.replace("{query}", draft.value)
        return draft.size * self.counter.text(NOISE + "\n", "line", "line") + self.counter.text(before + rest)

    def tokens(self, draft: ChainDraft) -> int:
        """Tokens of the prompt, example included."""
        if not self.counter.piecewise:
            return whole_tokens(self.counter, self.render(draft))
        return self._body_tokens(draft, draft.example)
