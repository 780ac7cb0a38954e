"""The options of a question as a tree of tokens, to compare their log-likelihoods with few requests.

One request per inner node asks the engine for the next-token log-probabilities of exactly its children. Single-token
options over one context are thus one request; longer options share the requests for their common beginning.

Example: the options " A B" and " A C" over one context are two requests: the context asks for " A", and the context
followed by " A" asks for " B" and " C".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from harness.engine.requests import Choice, Question, RequestError

_MAX_CHILDREN = 128  # vLLM's limit on logprob_token_ids of one request


@dataclass
class Node:
    """A prefix of one or more options.

    `ids`: the context and the option's tokens so far. `children`: the next tokens of the options with this prefix.
    Filled by the answer: `logprobs` of the children (nats) and `greedy`, the likeliest next token.
    """

    key: Hashable
    ids: tuple[int, ...]
    children: set[int] = field(default_factory=set)
    logprobs: dict[int, float] = field(default_factory=dict)
    greedy: int = -1


class Tree:
    """The options of one question as a tree of prefixes.

    `paths`: per option, the nodes whose log-probabilities it sums. `unanswered`: number of nodes without an answer.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.nodes: list[Node] = []
        self.paths: list[list[Node]] = []
        where: dict[tuple[tuple[int, ...], int], Node] = {}  # (prefix, next token) -> the node that asks for it
        latest: dict[tuple[int, ...], Node] = {}  # prefix -> its newest node; a full node gets a successor
        for ctx, continuation in question.options:
            path = []
            for depth, token in enumerate(continuation):
                ids = ctx + continuation[:depth]
                if (ids, token) not in where:
                    if ids not in latest or len(latest[ids].children) == _MAX_CHILDREN:
                        latest[ids] = Node(question.key, ids)
                        self.nodes.append(latest[ids])
                    latest[ids].children.add(token)
                    where[ids, token] = latest[ids]
                path.append(where[ids, token])
            self.paths.append(path)
        self.unanswered = len(self.nodes)
        self.seconds = 0.0
        self.cached = 0

    def take(self, node: Node, output: Any, seconds: float) -> None:
        """Record one node's log-probabilities from vLLM's RequestOutput.

        Raises:
            RequestError: the log-probability of a child is missing or is no number.
        """
        answer = output.outputs[0]
        row = answer.logprobs[0]
        node.greedy = answer.token_ids[0]
        node.logprobs = {token: row[token].logprob for token in node.children if token in row}
        if len(node.logprobs) < len(node.children) or any(not -1e9 < v <= 1e-3 for v in node.logprobs.values()):
            raise RequestError(node.key, "the engine returned no usable log-probability for every option")
        self.unanswered -= 1
        self.seconds = max(self.seconds, seconds)
        self.cached += output.num_cached_tokens or 0

    def choice(self) -> Choice:
        """The answer to the question: each option's log-likelihood is the sum over its path."""
        sums, greedy = [], []
        for path, (_, continuation) in zip(self.paths, self.question.options, strict=True):
            sums.append(sum(node.logprobs[token] for node, token in zip(path, continuation, strict=True)))
            greedy.append(all(node.greedy == token for node, token in zip(path, continuation, strict=True)))
        sent = sum(len(node.ids) for node in self.nodes)
        return Choice(self.question.key, tuple(sums), tuple(greedy), self.seconds, sent, self.cached)


def padded(ids: list[int]) -> list[int]:
    """`ids`, repeated up to vLLM's longest list if token 0 is among them.

    vLLM pads the shorter lists of a batch with token 0 at -inf, in both of its samplers (v1/sample/sampler.py, and
    v1/worker/gpu/sample/logprob.py, which has Triton kernels). The -inf would replace the log-probability of the real
    token 0. A list of the greatest length is never padded.
    """
    return (ids * (_MAX_CHILDREN // len(ids) + 1))[:_MAX_CHILDREN] if 0 in ids else ids
