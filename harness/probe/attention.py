"""Attention weights of chosen query rows, row by row exact: their weight on the first token, entropy and distance.

Shapes: R query rows, T keys, H query heads, K key/value heads, D head_dim. Rows are processed in blocks, so that
there is never a matrix of R x T for all heads at once beyond `BLOCK` numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1 << 23
"""Attention weights in memory at once, in float32 numbers (32 MiB)."""


class RowMeasures(NamedTuple):
    """Measurements of attention rows, each (R, H) float32.

    `first`: weight on key position 0 ("F-Attn" in the paper's Table 4). `entropy`: -sum p ln p, in nats. `distance`:
    mean of query position minus key position, in tokens, weighted by attention.
    """

    first: Tensor
    entropy: Tensor
    distance: Tensor


def weights(
    q_RHD: Tensor, k_TKD: Tensor, positions_R: Tensor, scale: float, *, window: int | None = None, softcap: float = 0.0
) -> Tensor:
    """softmax(scale q k^T) over the keys that each query may see: (H, R, T) float32.

    `positions_R`: the position of each query row; keys 0..T-1 are at positions 0..T-1. `window`: a sliding window's
    length in tokens, the query's own position included. `softcap`: scores are softcap tanh(scores / softcap) where it
    is not 0 (Gemma 2).
    """
    rows, heads, dim = q_RHD.shape
    keys, groups = k_TKD.shape[0], k_TKD.shape[1]
    q_KGRD = q_RHD.float().view(rows, groups, heads // groups, dim).permute(1, 2, 0, 3)
    scores = (q_KGRD.reshape(groups, -1, dim) * scale) @ k_TKD.float().permute(1, 2, 0)  # (K, G R, T)
    scores_HRT = scores.view(heads, rows, keys)
    if softcap:
        scores_HRT = softcap * torch.tanh(scores_HRT / softcap)
    at = torch.arange(keys, device=k_TKD.device)
    hidden_RT = at > positions_R[:, None]
    if window is not None:
        hidden_RT |= at <= positions_R[:, None] - window
    return scores_HRT.masked_fill_(hidden_RT, float("-inf")).softmax(-1)


def measure_rows(
    q_RHD: Tensor, k_TKD: Tensor, positions_R: Tensor, scale: float, *, window: int | None = None, softcap: float = 0.0
) -> RowMeasures:
    """`RowMeasures` of the query rows at `positions_R` (ascending) over all keys that each may see."""
    measured = []
    start, heads = 0, q_RHD.shape[1]
    while start < len(positions_R):
        # rows of a block share the keys up to its last row
        rows = max(1, BLOCK // (heads * k_TKD.shape[0]))
        at = positions_R[start : start + rows]
        keys = int(at[-1]) + 1
        p_HRT = weights(q_RHD[start : start + rows], k_TKD[:keys], at, scale, window=window, softcap=softcap)
        first = p_HRT[..., 0].T.clone()
        mean_key = p_HRT @ torch.arange(keys, dtype=torch.float32, device=p_HRT.device)  # (H, R)
        entropy = torch.special.entr(p_HRT).sum(-1).T
        measured.append(RowMeasures(first, entropy, at[:, None] - mean_key.T))
        start += rows
    return RowMeasures(*(torch.cat(parts) for parts in zip(*measured, strict=True)))
