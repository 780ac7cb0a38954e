"""Comparing continuations by log-likelihood: the options of a question as a tree of tokens.

One request per inner node asks the engine for the next-token log-probabilities of exactly the children. Single-token
options over a shared context are thus one request; longer ones share what they begin with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from harness.engine.requests import Choice, EngineError, Question

_WIDTH = 16  # see padded
_MOST = 128  # vLLM's limit on logprob_token_ids of one request


@dataclass
class Node:
    """A prefix of one or more options: the token ids so far, and the next tokens that options go on with."""

    key: Hashable
    ids: tuple[int, ...]
    children: set[int] = field(default_factory=set)
    logprobs: dict[int, float] = field(default_factory=dict)
    greedy: int = -1


class Tree:
    """The options of one question as a tree of prefixes."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.nodes: list[Node] = []
        self.paths: list[list[Node]] = []
        where: dict[tuple[tuple[int, ...], int], Node] = {}  # (prefix, next token) -> the node that asks for it
        latest: dict[tuple[int, ...], Node] = {}
        for ctx, continuation in question.options:
            path = []
            for depth, token in enumerate(continuation):
                ids = ctx + continuation[:depth]
                if (ids, token) not in where:
                    if ids not in latest or len(latest[ids].children) == _MOST:
                        latest[ids] = Node(question.key, ids)
                        self.nodes.append(latest[ids])
                    latest[ids].children.add(token)
                    where[ids, token] = latest[ids]
                path.append(where[ids, token])
            self.paths.append(path)
        self.waiting = len(self.nodes)
        self.seconds = 0.0
        self.cached = 0

    def take(self, node: Node, output: Any, seconds: float) -> None:
        """Record one node's log-probabilities. Raises EngineError when one that was asked for did not come."""
        answer = output.outputs[0]
        row = answer.logprobs[0]
        node.greedy = answer.token_ids[0]
        node.logprobs = {token: row[token].logprob for token in node.children if token in row}
        if len(node.logprobs) < len(node.children) or any(not -1e9 < v <= 1e-3 for v in node.logprobs.values()):
            raise EngineError(f"{node.key}: the engine returned no usable log-probability for every option")
        self.waiting -= 1
        self.seconds = max(self.seconds, seconds)
        self.cached += output.num_cached_tokens or 0

    def choice(self) -> Choice:
        """Sum each option's path."""
        sums, greedy = [], []
        for path, (_, continuation) in zip(self.paths, self.question.options, strict=True):
            sums.append(sum(node.logprobs[token] for node, token in zip(path, continuation, strict=True)))
            greedy.append(all(node.greedy == token for node, token in zip(path, continuation, strict=True)))
        sent = sum(len(node.ids) for node in self.nodes)
        return Choice(self.question.key, tuple(sums), tuple(greedy), self.seconds, sent, self.cached)


def padded(ids: list[int]) -> list[int]:
    """`ids` repeated to a common width.

    vLLM pads the shorter lists of a batch with token 0 at -inf, which would hide the real token 0 of such a list: with
    equal widths there is nothing to pad. Lists beyond the width are rounded up; `take` refuses an -inf all the same.
    """
    width = _WIDTH
    while width < len(ids):
        width *= 2
    return (ids * (width // len(ids) + 1))[:width]
