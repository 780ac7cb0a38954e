"""The demo's multiple-choice questions and word problems: for training and, held out from it, for evaluation.

They have the formats of MMLU and GSM8k, but other content: questions about twelve kinds of plain things, and sums of
two single digits. A model of a million parameters can learn the facts. A combination that the evaluation files ask for
(a set of options; a wording with its name and numbers) never occurs in the training stream.

    python -m tasks.demo.questions tasks/demo    writes the evaluation files again
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tasks.demo.words import CATEGORIES, MEN, WOMEN, with_article

Split = Literal["train", "test"]
Options = tuple[str, str, str, str]

LETTERS = "ABCD"
TEST_SIZE = 256  # 64 of each letter; 16 of each answer
DEV_SIZE = 5  # the examples that an evaluation prompt may begin with, as in MMLU
CHOICE_INTRO = "The following are multiple choice questions (with answers).\n\n"
_SEED = 2029
_HELD_OUT = 8  # one combination in so many is for evaluation


@dataclass(frozen=True)
class Choice:
    """One question with four options, of which the one with index `answer` is right."""

    question: str
    options: Options
    answer: int


@dataclass(frozen=True)
class Problem:
    """One sum in words, its worked solution as GSM8k writes it ("3 + 4 = 7", then "#### 7"), and the answer."""

    question: str
    solution: str
    answer: int


# --- multiple choice -------------------------------------------------------------------------------------------------


def choice(rng: random.Random, split: Split = "train") -> Choice:
    """A question that asks which of four things, all of different kinds, is of a given kind. Each letter is as likely.

    One combination in eight of (kind, four options), in any order of the options, is held out for evaluation.
    """
    while True:
        kinds = rng.sample(list(CATEGORIES), 4)
        options = [rng.choice(CATEGORIES[kind]) for kind in kinds]
        if _split_of("choice", kinds[0], *sorted(options)) == split:
            break
    order = rng.sample(range(4), 4)
    question = f"Which of these is {with_article(kinds[0])}?"
    if kinds[0] == "weather":
        question = "Which of these is weather?"
    return Choice(question, tuple(options[i] for i in order), order.index(0))  # type: ignore[arg-type]


def choice_body(question: Choice) -> str:
    """The question as the model reads it, "Answer:" included."""
    lines = [question.question, *(f"{letter}. {o}" for letter, o in zip(LETTERS, question.options, strict=True))]
    return "\n".join([*lines, "Answer:"])


def choice_prompt(question: Choice, shots: Sequence[Choice] = ()) -> str:
    """Byte for byte what lm-eval sends for `demo_choice` with these examples; the answer is " A" to " D"."""
    solved = "".join(f"{choice_body(shot)}{choice_answer(shot)}\n\n" for shot in shots)
    return CHOICE_INTRO + solved + choice_body(question)


def choice_answer(question: Choice) -> str:
    """The right continuation of the prompt: a space and the letter."""
    return f" {LETTERS[question.answer]}"


# --- word problems ---------------------------------------------------------------------------------------------------

_THINGS = {
    "apple": "apples", "pear": "pears", "plum": "plums", "lemon": "lemons", "egg": "eggs", "book": "books",
    "hat": "hats", "coat": "coats", "cow": "cows", "goat": "goats", "horse": "horses", "cake": "cakes",
    "basket": "baskets", "candle": "candles", "boat": "boats", "hammer": "hammers",
}  # fmt: skip

_MORE = (
    "{p} has {a} and finds {b} more. How many {things} does {p} have now?",
    "{p} has {a}. {q} brings {b} more. How many {things} are there now?",
    "There are {a} in the house and {b} in the barn. How many {things} are there in all?",
    "{p} buys {a} and {q} buys {b}. How many {things} do they have together?",
    "In the morning {p} sees {a}, in the evening {b}. How many {things} does {p} see?",
    "{p} has {a}. {q} has {b} more than {p}. How many {things} does {q} have?",
    "{p} sold {a} and has {b} left. How many {things} were there before?",
    "A box holds {a}. {p} puts {b} more in it. How many {things} are in the box?",
)
_FEWER = (
    "{p} has {a} and loses {b}. How many {things} does {p} have now?",
    "{p} has {a}. {q} takes {b} of them. How many {things} are left?",
    "There are {a} in the shop. {p} buys {b}. How many {things} are still there?",
    "{p} had {a} and gave {b} to {q}. How many {things} does {p} have left?",
    "{p} needs {a} and has {b}. How many {things} are missing?",
    "{p} has {a}. {q} has {b} fewer than {p}. How many {things} does {q} have?",
    "{p} counts {a} and cleans {b} of them. How many {things} are not clean?",
    "A box holds {a}. {p} takes {b} out of it. How many {things} are in the box?",
)
ANSWERS = tuple(range(1, 17))
"""The answers, all equally frequent: the best constant guess is right once in sixteen."""


def problem(rng: random.Random, split: Split = "train") -> Problem:
    """A sum or a difference of two single digits in words; each answer from 1 to 16 is as likely.

    One combination in eight of (wording, name, numbers) is held out for evaluation.
    """
    answer = rng.choice(ANSWERS)
    while True:
        add = answer > 8 or (answer > 1 and rng.random() < 0.5)
        first = rng.randint(max(1, answer - 9), min(9, answer - 1)) if add else rng.randint(answer + 1, 9)
        second = answer - first if add else first - answer
        wording = rng.choice(_MORE if add else _FEWER)
        woman = rng.random() < 0.5
        name, other = rng.choice(WOMEN if woman else MEN), rng.choice(MEN if woman else WOMEN)
        thing = rng.choice(list(_THINGS))
        # The text without the things. A wording that has no name is one combination, whichever name was drawn.
        if _split_of("problem", wording.format(p=name, q="", things="", a=first, b=second)) == split:
            break
    question = wording.format(
        p=name, q=other, things=_THINGS[thing], a=_counted(first, thing), b=_short(wording, second, thing)
    )
    return Problem(question, f"{first} {'+' if add else '-'} {second} = {answer}\n#### {answer}", answer)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing if number == 1 else _THINGS[thing]}"


def _short(wording: str, number: int, thing: str) -> str:
    """The second number: alone where the wording continues after it, else with its thing."""
    return str(number) if "{b} " in wording else _counted(number, thing)


def problem_body(question: Problem) -> str:
    """The question as the model reads it, "Answer:" included."""
    return f"Question: {question.question}\nAnswer:"


def problem_prompt(question: Problem, shots: Sequence[Problem] = ()) -> str:
    """Byte for byte what lm-eval sends for `demo_words` with these examples; the answer is a space and the solution."""
    solved = "".join(f"{problem_body(shot)}{problem_answer(shot)}\n\n" for shot in shots)
    return solved + problem_body(question)


def problem_answer(question: Problem) -> str:
    """The right continuation of the prompt: a space and the solution."""
    return f" {question.solution}"


# --- the evaluation files --------------------------------------------------------------------------------------------

T = TypeVar("T", Choice, Problem)


def _split_of(*parts: str) -> Split:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return "test" if digest[0] % _HELD_OUT == 0 else "train"


def _balanced(make: Callable[[random.Random, Split], T], split: Split, answers: Sequence[int], size: int) -> list[T]:
    """`size` distinct questions in random order; the answers are equally frequent as far as `size` allows."""
    rng = random.Random(f"{make.__name__}/{split}/{_SEED}")
    wanted = [answers[i % len(answers)] for i in range(size)]
    rng.shuffle(wanted)
    found: list[T] = []
    seen: set[str] = set()
    for answer in wanted:
        while True:
            candidate = make(rng, split)
            if candidate.answer == answer and candidate.question + str(vars(candidate)) not in seen:
                break
        seen.add(candidate.question + str(vars(candidate)))
        found.append(candidate)
    return found


def dev_choices() -> list[Choice]:
    """The five solved examples of `demo_choice`, in order; not held out from training."""
    return _balanced(choice, "train", range(4), DEV_SIZE)


def dev_problems() -> list[Problem]:
    """The five solved examples of `demo_words`, in order; not held out from training."""
    return _balanced(problem, "train", ANSWERS, DEV_SIZE)


def test_choices() -> list[Choice]:
    """The 256 questions of `demo_choice`: held-out combinations, each letter right exactly 64 times."""
    return _balanced(choice, "test", range(4), TEST_SIZE)


def test_problems() -> list[Problem]:
    """The 256 problems of `demo_words`: held-out combinations, each answer exactly 16 times."""
    return _balanced(problem, "test", ANSWERS, TEST_SIZE)


def files() -> Iterator[tuple[str, str]]:
    """(file name, content) of the evaluation files, JSON lines in MMLU's and GSM8k's fields."""
    for split, choices in (("dev", dev_choices()), ("test", test_choices())):
        rows = ({"question": c.question, "choices": list(c.options), "answer": c.answer} for c in choices)
        yield f"choice_{split}.jsonl", _lines(rows)
    for split, problems in (("dev", dev_problems()), ("test", test_problems())):
        yield f"words_{split}.jsonl", _lines({"question": p.question, "answer": p.solution} for p in problems)


def _lines(rows: Iterator[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def main(target: Path) -> None:
    """Write the evaluation files into `target`."""
    for name, content in files():
        (target / name).write_text(content, encoding="utf-8")
        print(target / name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tasks/demo"))
