"""What is asked of the generator: one task at one length, with everything that decides its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.data.folder import DataFolder
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError
from tasks.ruler.protocol import ANSWER_TOKENS, TASKS

PROFILES = ("nvidia", "fair")
COMBINED = "combined"
"""The word list that is made of wonderwords' own lists."""
Counting = Literal["auto", "piecewise", "whole"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that decides the samples of one task at one length.

    Raises:
        GatedevalError: an unknown task or option, a negative number, or a length that the answer alone fills.
    """

    task: str
    """One of the 13 names in `protocol.TASKS`."""
    tokenizer: Tokenizer
    """The evaluated model's."""
    length: int
    """Tokens that prompt and answer may take together."""
    samples: int
    """Rows 0 to `samples` - 1 belong to the task. In the nvidia profile, qa_1 and qa_2 have no more than their data."""
    start: int = 0
    """The first row that is given. Earlier rows are drawn, because later ones depend on their draws, and left out."""
    seed: int = 42
    """Of all random draws."""
    data: DataFolder = field(default_factory=DataFolder)
    """Where essays, SQuAD and HotpotQA are."""
    profile: str = "nvidia"
    """nvidia: upstream's bytes. fair: draws of its own for every sample, and a budget on the ids as sent."""
    answer_prefix: str = "append"
    """append: the prompt ends in the answer prefix. drop: the prefix is left out."""
    answer_tokens: int | None = None
    """Tokens inside `length` that are kept for the answer; None: RULER's own number for the task."""
    words: str | None = None
    """cwe's words beyond wonderwords' 8,166. None: NVIDIA/RULER's english_words.json. combined: wonderwords' words and
    its "adjective-noun" pairs (profile fair). Else a file of words: one a line, or a JSON list or object of them."""
    reserved: int | None = None
    """Tokens inside `length` that are neither prompt text nor answer: special tokens, a chat template's own, a thought.
    None: upstream's rule, which leaves special tokens out of the length (nvidia), or the tokenizer's BOS (fair)."""
    max_model_len: int | None = None
    """Tokens that the model takes; a sample that needs more, with its answer, is an error. None: no such check."""
    counting: Counting = "auto"
    """auto: tokens are counted in pieces where the tokenizer allows it. piecewise, whole: one way only, for tests."""

    def __post_init__(self) -> None:
        task, samples, start, budget = self.task, self.samples, self.start, self.answer_tokens
        if task not in TASKS:
            raise GatedevalError(f"RULER has no task {task!r}; its tasks: {', '.join(TASKS)}")
        if self.profile not in PROFILES:
            raise GatedevalError(f"RULER profile {self.profile!r}: expected nvidia or fair")
        if self.answer_prefix not in ("append", "drop"):
            raise GatedevalError(f"RULER answer_prefix {self.answer_prefix!r}: expected append or drop")
        if self.words == COMBINED and self.profile != "fair":
            raise GatedevalError(
                "RULER word list 'combined' is not upstream's: use it with profile fair, or name a file"
            )
        if samples < 0 or start < 0:
            raise GatedevalError(f"RULER {task}: samples ({samples}) and start ({start}) cannot be negative")
        if budget is not None and budget < 1:
            raise GatedevalError(f"RULER answer_tokens {budget}: should be at least 1")
        if (self.reserved or 0) < 0:
            raise GatedevalError(f"RULER {task}: reserved ({self.reserved}) cannot be negative")
        if self.text_budget < 1:
            smaller = " or a smaller answer_tokens" if self.answer_budget > 1 else ""
            beside = f", {self.outside} more are reserved" if self.outside else ""
            raise GatedevalError(
                f"RULER {task} at length {self.length}: the answer alone may take {self.answer_budget} tokens{beside};"
                f" use a larger one{smaller}"
            )

    @property
    def answer_budget(self) -> int:
        """Tokens kept for the answer."""
        return ANSWER_TOKENS[self.task] if self.answer_tokens is None else self.answer_tokens

    @property
    def outside(self) -> int:
        """Tokens inside `length` that are neither prompt text nor answer."""
        if self.reserved is not None:
            return self.reserved
        # A request is checked before its tokenizer is loaded, too (`generation.request_for`).
        return len(getattr(self.tokenizer, "prefix_ids", ())) if self.profile == "fair" else 0

    @property
    def text_budget(self) -> int:
        """Tokens that input and answer prefix may take."""
        return self.length - self.answer_budget - self.outside
