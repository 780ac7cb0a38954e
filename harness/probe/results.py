"""One probe of one text, put together from what every tensor-parallel rank measured.

Shapes: L layers, H query heads, R sampled query rows, n tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.probe.histogram import GATE_BINS, THRESHOLDS, share_below
from harness.probe.plan import ProbePlan
from harness.probe.rows import Floats

SINK = 0.3
"""A head is a sink head where its mean weight on the first token is above this (Gu et al. 2024, arXiv 2410.10781)."""


@dataclass(frozen=True)
class Estimate:
    """A mean over query positions: per head (L, H), per layer (L,) and over all layers, each with its standard error.

    The errors are those of the sampling of rows, 0 where all rows were computed. Errors of a layer and of the whole
    model are computed from the rows' own means over heads, because the heads of one row are not independent.
    """

    head: Floats
    head_error: Floats
    layer: Floats
    layer_error: Floats
    mean: float
    error: float


@dataclass(frozen=True)
class ProbeResult:
    """What was measured on one text.

    `first`: attention weight on the first token (F-Attn). `entropy`: of the attention weights, in nats. `distance`:
    mean attention distance in tokens. `hidden`: (L, 3) largest absolute value of the residual stream after each
    layer, its token position and its channel. `final`: (3,) the same after the final norm. `gate_mean`, `gate_low`:
    (L, H) mean gate, and the share of gates below 0.1; empty without a gate. `gate_histogram`: (L, 50) counts of
    gates in bins of width 0.02. `small_before`, `small_after`: (L, 2) share of the attention output with an absolute
    value below 1e-2 and 1e-3, before and after the gate; `small_scaled`: of the output before the gate times the
    layer's mean gate, a control that has the same scale as the gated output and no selection. `losses`: (n - 1,)
    negative log-likelihood of tokens 1 to n - 1, in nats; empty where it was not computed. `maps`: (layer, head) ->
    (n, n).
    """

    length: int
    rows: int
    exact: bool
    first: Estimate
    entropy: Estimate
    distance: Estimate
    hidden: Floats
    final: Floats
    gate_mean: Floats
    gate_low: Floats
    gate_histogram: Floats
    small_before: Floats
    small_after: Floats
    small_scaled: Floats
    losses: Floats
    maps: Mapping[tuple[int, int], Floats] = field(default_factory=dict)

    @property
    def sink_rate(self) -> float:
        """The share of heads whose mean weight on the first token is above `SINK`."""
        return float((self.first.head > SINK).mean())

    @property
    def activations(self) -> Floats:
        """(L,) largest absolute activation after each layer, the last one after the final norm (transformers'
        convention).
        """
        return np.append(self.hidden[:-1, 0], self.final[0])

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood; nan where it was not computed."""
        return float(np.exp(self.losses.mean())) if len(self.losses) else float("nan")

    def perplexity_by_position(self, edges: Sequence[int] | None = None) -> list[tuple[int, int, float]]:
        """(first position, end, perplexity) of buckets of token positions; by default from one power of two to the
        next.

        Position p is predicted from the p tokens before it.
        """
        if edges is None:
            edges = [1, *(2**k for k in range(1, self.length.bit_length()) if 2**k < self.length), self.length]
        found = []
        for begin, end in itertools.pairwise(edges):
            part = self.losses[begin - 1 : end - 1]
            if len(part):
                found.append((begin, end, float(np.exp(part.mean()))))
        return found


def combine(plan: ProbePlan, ranks: Sequence[Mapping[str, Any]]) -> ProbeResult:
    """The result of one text from `Recorder.finish` of every rank.

    Raises:
        ValueError: a measured number is not finite.
    """
    ordered = sorted(ranks, key=lambda r: r["rank"])
    estimates = {
        name: _estimate(plan, [_array(r["measures"][name]) for r in ordered]) for name in ordered[0]["measures"]
    }
    before = _small([r["before"] for r in ordered])
    gated = bool(ordered[0]["gates"])
    holders = list({r["rank"] if r["first_gate"] is None else r["first_gate"]: r for r in ordered}.values())
    gate_mean = _heads([[g["mean"] for g in r["gates"]] for r in holders]) if gated else np.zeros((0, 0))
    changed = bool(ordered[0]["after"])
    losses = next((r["losses"] for r in ordered if r["losses"]), b"")
    result = ProbeResult(
        length=len(plan.ids),
        rows=len(plan.rows.positions),
        exact=plan.rows.exact,
        **estimates,
        hidden=np.array(ordered[0]["hidden"]),
        final=np.array(ordered[0]["final"]),
        gate_mean=gate_mean,
        gate_low=_heads([[g["low"] for g in r["gates"]] for r in holders]) if gated else np.zeros((0, 0)),
        gate_histogram=(
            np.sum([[g["histogram"] for g in r["gates"]] for r in holders], axis=0)
            if gated
            else np.zeros((0, GATE_BINS))
        ),
        small_before=before,
        small_after=_small([r["after"] for r in ordered]) if changed else np.zeros((0, 2)),
        small_scaled=_scaled([r["before"] for r in ordered], gate_mean.mean(axis=1)) if gated else np.zeros((0, 2)),
        losses=np.frombuffer(losses, dtype=np.float32).astype(np.float64),
        maps={(layer, head): np.array(m) for r in ordered for layer, head, m in r["maps"]},
    )
    for name in ("first", "entropy", "distance"):
        if not np.isfinite(estimates[name].head).all():
            raise ValueError(f"the attention weights of the model are not finite ({name})")
    if not np.isfinite(result.hidden[:, 0]).all() or not np.isfinite(result.losses).all():
        raise ValueError("the activations of the model are not finite")
    return result


def _array(sent: Sequence[Any]) -> Floats:
    data, shape = sent
    return np.frombuffer(data, dtype=np.float32).astype(np.float64).reshape(shape)


def _estimate(plan: ProbePlan, ranks: Sequence[Floats]) -> Estimate:
    """Means over rows from (L, R, H of the rank) measurements."""
    values_RLH = np.concatenate(ranks, axis=2).transpose(1, 0, 2)
    head, head_error = plan.rows.estimate(values_RLH)
    layer, layer_error = plan.rows.estimate(values_RLH.mean(axis=2))
    mean, error = plan.rows.estimate(values_RLH.mean(axis=(1, 2)))
    return Estimate(head, head_error, layer, layer_error, float(mean), float(error))


def _heads(ranks: Sequence[Sequence[Sequence[float]]]) -> Floats:
    """(L, H) from every rank's own heads."""
    return np.concatenate([np.array(r) for r in ranks], axis=1)


def _small(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> Floats:
    """(L, 2) shares of small values over all ranks' heads."""
    below = np.sum([[layer["below"] for layer in r] for r in ranks], axis=0)
    count: NDArray[Any] = np.sum([[layer["count"] for layer in r] for r in ranks], axis=0)
    return np.asarray(below / count[:, None], dtype=np.float64)


def _scaled(ranks: Sequence[Sequence[Mapping[str, Any]]], gates: Floats) -> Floats:
    """(L, 2) shares of small values after every value of a layer was multiplied with the layer's mean gate."""
    histograms = np.sum([[layer["histogram"] for layer in r] for r in ranks], axis=0)
    return np.array([[share_below(h, t / g) for t in THRESHOLDS] for h, g in zip(histograms, gates, strict=True)])
