"""The same measurements from whole attention matrices, in the plain-torch model: what the live engine is compared with.

It shares with the live probe the choice of rows and the thresholds, and nothing that computes. Memory grows with the
square of the text's length: for short texts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.config import ContextSetting
from harness.models.reference import NATIVE, Reference, Trace
from harness.probe.histogram import LOW_GATE, THRESHOLDS


@dataclass(frozen=True)
class ReferenceProbe:
    """Measurements of one text, L layers, H query heads, n tokens, all query positions from `begin` on.

    `first`, `entropy`, `distance`: (L, H). `hidden`: (L,) largest absolute value of the residual stream. `final`: the
    same after the final norm. `gate_mean`, `gate_low`: (L, H), None without a gate. `small_before`, `small_after`:
    (L, 2). `losses`: (n - 1,) nats. `attention`: (L, H, n, n).
    """

    first: Tensor
    entropy: Tensor
    distance: Tensor
    hidden: Tensor
    final: float
    gate_mean: Tensor | None
    gate_low: Tensor | None
    small_before: Tensor
    small_after: Tensor
    losses: Tensor
    attention: Tensor


@torch.inference_mode()
def probe_reference(
    model: Reference, ids: Sequence[int], setting: ContextSetting = NATIVE, *, first_query: bool = False
) -> ReferenceProbe:
    """Measure `ids` in the plain-torch model under a context setting. `first_query`: whether query 0 counts."""
    begin, trace = (0 if first_query else 1), Trace()
    ids_BT = torch.tensor([list(ids)])
    hidden_TE = model.model(ids_BT, model.cos_sin(len(ids), setting), trace)[0]
    weights_LHTT = torch.stack([w[0] for w in trace.attention])
    rows = weights_LHTT[:, :, begin:]
    query = torch.arange(begin, len(ids))[:, None]
    key = torch.arange(len(ids))[None, :]
    before = torch.stack([o[0] for o in trace.outputs])
    gates = torch.stack([g[0] for g in trace.gates]) if trace.gates else None
    after = torch.stack([o[0] for o in trace.projected])
    logprobs = model.head(hidden_TE[:-1]).log_softmax(-1)
    return ReferenceProbe(
        first=rows[..., 0].mean(-1),
        entropy=-(rows * rows.clamp_min(1e-45).log()).sum(-1).mean(-1),
        distance=(rows * (query - key)).sum(-1).mean(-1),
        hidden=torch.stack([s.abs().max() for s in trace.stream]),
        final=float(hidden_TE.abs().max()),
        gate_mean=None if gates is None else gates.mean(dim=(1, 3)),
        gate_low=None if gates is None else (gates < LOW_GATE).float().mean(dim=(1, 3)),
        small_before=_small(before),
        small_after=_small(after),
        losses=-logprobs.gather(1, ids_BT[0, 1:, None])[:, 0],
        attention=weights_LHTT,
    )


def _small(values: Tensor) -> Tensor:
    """(L, 2) shares of absolute values below each threshold."""
    return torch.stack([(values.abs() < t).float().mean(dim=(1, 2, 3)) for t in THRESHOLDS], dim=-1)
