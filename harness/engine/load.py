"""What the samples of a cell ask of an engine, in tokens: what a plan predicts time and memory from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.engine.option_tree import Tree
from harness.engine.prefixes import lexicographic
from harness.engine.requests import Prompt, Question


@dataclass(frozen=True, kw_only=True)
class Load:
    """Means over the samples of a cell.

    `requests`: per sample; several where options of several tokens are compared. `tokens`: of all prompts of a sample.
    `shared`: tokens of them that a sample has in common with one that was sent before, where there is one; None: as
    for another length of the task, in proportion.
    `answer`: the most tokens that a sample's answer may have (1 where options are compared).
    """

    tokens: float
    requests: float = 1.0
    shared: float | None = 0.0
    answer: float = 1.0

    def sharing(self, share: float) -> Load:
        """The same, where that part of each prompt is in common with another."""
        return replace(self, shared=share * self.tokens)


def load_of(requests: Sequence[Prompt | Question]) -> Load:
    """The load of encoded samples. What they share is counted exactly: each common beginning is computed once."""
    if not requests:
        return Load(tokens=0.0)
    prompts: list[Sequence[int]] = []
    answers = 0
    for request in requests:
        if isinstance(request, Prompt):
            prompts.append(request.ids)
            answers += request.max_tokens
        else:
            prompts += [node.ids for node in Tree(request).nodes]
            answers += 1
    _, pairs = lexicographic(prompts)
    others = max(len(requests) - 1, 1)
    return Load(
        requests=len(prompts) / len(requests),
        tokens=sum(map(len, prompts)) / len(requests),
        shared=sum(pairs) / others,
        answer=answers / len(requests),
    )
