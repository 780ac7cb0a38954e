"""A text as windows of tokens whose log-likelihoods add up to the text's: lm-eval's rolling log-likelihood."""

from __future__ import annotations

from collections.abc import Sequence

Window = tuple[tuple[int, ...], tuple[int, ...]]
"""(context ids, ids that are predicted)."""


def text_windows(ids: Sequence[int], start: int, longest: int) -> tuple[Window, ...]:
    """The windows of lm-eval's `get_rolling_token_windows` with one token of context, made disjoint.

    Every token is predicted once. The first window predicts its tokens after `start` (BOS, or end-of-text); each later
    one after the last token of the window before; the last window is moved to the left, so that its predictions have
    as long a context as there is. `longest`: tokens of a window without its last predicted one, which is what a model
    reads.

    Raises:
        ValueError: `longest` is below 1.
    """
    if longest < 1:
        raise ValueError(f"a window reads at least 1 token, not {longest}")
    whole = [start, *ids]  # the prediction of ids[i] reads whole[: i + 1]
    windows = []
    done = 0
    while done < len(ids):
        end = min(done + longest, len(ids))
        begin = max(0, end - longest)  # of the tokens that are read: whole[begin:end]
        windows.append((tuple(whole[begin : done + 1]), tuple(ids[done:end])))
        done = end
    return tuple(windows)
