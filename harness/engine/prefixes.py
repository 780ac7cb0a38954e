"""Prefixes that prompts share, in tokens. The engine computes a shared prefix once and finds it in its cache later."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

BLOCK = 16
"""Tokens. Shared prefixes are counted in whole blocks, as in vLLM's cache (whose blocks are at least as large)."""


def lexicographic(prompts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """(positions of the prompts in lexicographic order, tokens that each neighbouring pair in that order shares)."""
    rows = [np.asarray(ids, dtype=np.uint32) for ids in prompts]
    order = sorted(range(len(rows)), key=[row.astype(">u4").tobytes() for row in rows].__getitem__)
    shared = []
    for one, other in itertools.pairwise(order):
        common = min(len(rows[one]), len(rows[other]))
        differ = np.flatnonzero(rows[one][:common] != rows[other][:common])
        shared.append(int(differ[0]) if len(differ) else common)
    return order, shared


def shared_tokens(prompts: Sequence[Sequence[int]]) -> list[int]:
    """For each prompt, the length of the longest prefix that it shares with another prompt, in tokens.

    O(n log n) comparisons: in lexicographic order, a prompt is next to the one with which it shares most.
    """
    order, pairs = lexicographic(prompts)
    shared = [0] * len(order)
    for (one, other), length in zip(itertools.pairwise(order), pairs, strict=True):
        shared[one], shared[other] = max(shared[one], length), max(shared[other], length)
    return shared
