"""In which order prompts are sent, so that what they share at their beginnings is computed once and found again.

Samples of a needle task share the haystack up to their first needle. Sent deepest first, each later prompt goes on from
a prefix of the first one's haystack, and what is no longer needed is what the cache gives up first: its deepest blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
BLOCK = 16
"""Tokens; what is shared counts in whole ones, as in vLLM's cache (whose blocks are at least as large)."""
FIRST_WINDOW, LARGEST_WINDOW = 1_000_000, 32_000_000
"""Tokens: prompts are put in order in windows that grow, so that the engine does not wait for the first one, and that
are never so large that they would not fit into memory (4 bytes a token, twice while they are put in order)."""
WORTHWHILE = 0.1  # of a prompt must be shared, else its cell is sent as it comes


def shared_tokens(prompts: Sequence[Sequence[int]]) -> list[int]:
    """For each prompt, how many of its first tokens some other one begins with too.

    O(n log n) comparisons: in lexicographic order, the prompt that shares most with another stands beside it.
    """
    rows = [np.asarray(ids, dtype=np.uint32) for ids in prompts]
    order = sorted(range(len(rows)), key=[row.astype(">u4").tobytes() for row in rows].__getitem__)
    shared = [0] * len(rows)
    for one, other in itertools.pairwise(order):
        common = min(len(rows[one]), len(rows[other]))
        differ = np.flatnonzero(rows[one][:common] != rows[other][:common])
        length = int(differ[0]) if len(differ) else common
        shared[one], shared[other] = max(shared[one], length), max(shared[other], length)
    return shared


def deepest_first(prompts: Sequence[Sequence[int]]) -> list[int] | None:
    """The order in which `prompts` should be sent, as positions; None where their order does not matter.

    Equal depths keep the order they came in.
    """
    shared = shared_tokens(prompts)
    if not shared or max(shared) < WORTHWHILE * float(np.median([len(ids) for ids in prompts])):
        return None
    blocks = [tokens // BLOCK for tokens in shared]
    return None if len(set(blocks)) == 1 else sorted(range(len(blocks)), key=lambda i: -blocks[i])


def in_windows(
    items: Iterable[T],
    prompt: Callable[[T], Sequence[int] | None],
    first: int = FIRST_WINDOW,
    largest: int = LARGEST_WINDOW,
) -> Iterator[T]:
    """`items`, deepest first within windows of `first` to `largest` tokens.

    `prompt`: an item's token ids, None for one that is handed on at once. Once a window shows that its prompts share
    nothing worth while, all that follows is handed on as it comes.
    """
    window: list[T] = []
    prompts: list[Sequence[int]] = []
    size, room, helps = 0, first, True
    for item in items:
        ids = prompt(item) if helps else None
        if ids is None:
            yield item
            continue
        window.append(item)
        prompts.append(ids)
        size += len(ids)
        if size >= room:
            order = deepest_first(prompts)
            helps = order is not None
            yield from (window[i] for i in order or range(len(window)))
            window, prompts, size, room = [], [], 0, min(2 * room, largest)
    order = deepest_first(prompts)
    yield from (window[i] for i in order or range(len(window)))
