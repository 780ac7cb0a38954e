"""The order in which prompts are sent, so that the engine computes a prefix that they share only once.

The samples of a needle task share the haystack up to their first needle. When the prompt with the longest shared
prefix is sent first, every later prompt starts with a prefix that is in the engine's cache. The cache evicts the last
blocks of a prompt first, and in this order those are the blocks that no later prompt needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from harness.engine.prefixes import BLOCK, shared_tokens

T = TypeVar("T")
FIRST_WINDOW, LARGEST_WINDOW = 1_000_000, 32_000_000
"""Tokens. Prompts are ordered in windows that grow: the first is small, so that the engine soon has work; the largest
fits into memory (4 bytes a token, twice that while prompts are ordered)."""
MINIMUM_SHARE = 0.1
"""Part of a prompt that must be shared; with less, the prompts of the cell keep their order."""


def deepest_first(prompts: Sequence[Sequence[int]]) -> list[int] | None:
    """The order in which to send `prompts`, as positions: longest shared prefix first, equal ones in the given order.

    None when the order does not matter: too little is shared, or every prompt shares the same number of blocks.
    """
    shared = shared_tokens(prompts)
    if not shared or max(shared) < MINIMUM_SHARE * float(np.median([len(ids) for ids in prompts])):
        return None
    blocks = [tokens // BLOCK for tokens in shared]
    return None if len(set(blocks)) == 1 else sorted(range(len(blocks)), key=lambda i: -blocks[i])


def in_windows(
    items: Iterable[T],
    prompt: Callable[[T], Sequence[int] | None],
    first: int = FIRST_WINDOW,
    largest: int = LARGEST_WINDOW,
) -> Iterator[T]:
    """`items`, ordered by `deepest_first` within windows of `first` to `largest` tokens.

    `prompt`: the token ids of an item; None for an item that is yielded at once. After a window whose order does not
    matter, all items that follow are yielded in their own order.
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
