"""Seconds per unit of each quantity of work: from observations, with the arithmetic of the model as a first guess.

An observation is (work, seconds). The time is taken to be linear in the quantities of `Work`, with coefficients that
are not negative. Observations seldom tell seven coefficients apart, so each is drawn towards the first guess, scaled to
the observed total (least squares with rows for the guess, as in ridge regression; Huber weights for outliers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.cost.work import QUANTITIES, Work
from harness.models.checkpoint import Checkpoint
from harness.models.kv_cache import KvLayers
from harness.models.weights import active_parameters, output_parameters

PULL = 0.05
"""Weight of the first guess against an observation: a coefficient that is off by itself costs so much of one."""
_PASSES = 5
_FLOPS = {"cpu": 2e10, "gpu": 2e14}  # per core, per GPU: multiplications and additions per second
_BANDWIDTH = {"cpu": 1e10, "gpu": 2e12}  # bytes per second
_STEP = {"cpu": 3e-3, "gpu": 3e-3}  # seconds of Python and kernel starts in a step
_REQUEST = 1e-3
_MADE = 1e-5  # per token: generating and encoding prompts


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Work that took so many seconds. `weight`: how much it counts against others."""

    work: Work
    seconds: float
    weight: float = 1.0


@dataclass(frozen=True)
class Speed:
    """Seconds per unit of every quantity, in the order of `QUANTITIES`."""

    coefficients: tuple[float, ...]

    def seconds(self, work: Work) -> float:
        """The time of that much work."""
        return float(np.dot(self.coefficients, work.row()))

    def parts(self, work: Work) -> dict[str, float]:
        """Seconds of each quantity: where the time goes."""
        return dict(zip(QUANTITIES, (float(x) for x in np.array(self.coefficients) * work.row()), strict=True))


def first_guess(
    checkpoint: Checkpoint, kv: KvLayers | None, *, element: float, weights: float, device: str, units: int
) -> Speed:
    """What arithmetic and memory traffic suggest. Only the proportions are used: an observation sets the scale.

    `element`: bytes of a stored key element; `weights`: bytes of weights per device; `units`: CPU cores or GPUs.
    """
    config = checkpoint.config
    active, output = active_parameters(checkpoint), output_parameters(checkpoint)
    layers = int(config.get("num_hidden_layers") or 1)
    heads = int(config.get("num_attention_heads") or 1)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or heads) // heads)
    stored = element * (sum(g.layers * g.heads * g.width for g in kv.groups) if kv else 2 * layers * heads * width)
    flops, bandwidth = _FLOPS[device] * units, _BANDWIDTH[device]
    return Speed(
        (
            _MADE,
            _REQUEST + 2 * output / flops,
            2 * active / flops,
            4 * layers * heads * width / flops,
            2 * (active + output) / flops,
            _STEP[device] + weights / bandwidth,
            stored / bandwidth,
        )
    )


def fit(observations: Sequence[Observation], guess: Speed) -> Speed:
    """The speed that explains the observations best, relative errors alike. Without observations: the guess."""
    from scipy.optimize import nnls

    used = [o for o in observations if o.seconds > 0 and o.work.row().any()]
    if not used:
        return guess
    total = sum(o.seconds for o in used)
    base: NDArray[np.float64] = np.array(guess.coefficients)
    base = base * (total / sum(guess.seconds(o.work) for o in used))
    seconds = np.array([o.seconds for o in used])
    rows = np.array([o.work.row() * base for o in used])  # unknowns: multiples of the scaled guess
    # A small part of the whole counts little: its relative error does not matter, and its clock is noisy.
    weights = np.array([o.weight for o in used]) / (seconds + 0.02 * total)
    multiples = np.ones(len(base))
    for _ in range(_PASSES):  # an observation that is far off, since another process was busy, counts less each time
        off = np.abs(rows @ multiples - seconds) * weights
        usual = max(float(np.median(off)), 0.02)
        robust = weights * np.sqrt(np.minimum(1.0, 3 * usual / np.maximum(off, 1e-12)))
        a = np.vstack([rows * robust[:, None], PULL * np.eye(len(base))])
        b = np.concatenate([seconds * robust, PULL * np.ones(len(base))])
        multiples, _residual = nnls(a, b)
    return Speed(tuple(float(x) for x in multiples * base))
