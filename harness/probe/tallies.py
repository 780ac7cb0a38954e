"""Sums that a probe keeps while a text passes through the model in chunks: gates, small values, largest activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.probe.histogram import BINS, GATE_BINS, LOW_GATE, LOWEST, OCTAVE, THRESHOLDS


class Largest:
    """The largest absolute value of (T, E) hidden states, and where it is."""

    def __init__(self) -> None:
        self.value, self.position, self.channel = -1.0, 0, 0
        self.seen = 0

    def add(self, hidden_TE: Tensor) -> None:
        """Take the next tokens' hidden states."""
        size = hidden_TE.abs()
        at = int(size.argmax())
        value = float(size.view(-1)[at])
        if value > self.value or value != value:
            width = hidden_TE.shape[-1]
            self.value, self.position, self.channel = value, self.seen + at // width, at % width
        self.seen += hidden_TE.shape[0]

    def to_plain(self) -> list[float]:
        """[value, position, channel]."""
        return [self.value, self.position, self.channel]


class Gates:
    """Gate values of one layer, (T, H, G) after the sigmoid: sums per head and a histogram."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.low: Tensor | float = 0.0
        self.values = 0  # per head
        self.histogram = torch.zeros(GATE_BINS, dtype=torch.float64)

    def add(self, gate_THG: Tensor) -> None:
        """Take the next tokens' gates."""
        wide = gate_THG.double()
        self.total = self.total + wide.sum(dim=(0, 2)).cpu()
        self.low = self.low + (wide < LOW_GATE).double().sum(dim=(0, 2)).cpu()
        self.values += gate_THG.shape[0] * gate_THG.shape[2]
        self.histogram += torch.histc(gate_THG.float(), GATE_BINS, 0.0, 1.0).double().cpu()

    def to_plain(self) -> dict[str, Any]:
        """Mean and share below `LOW_GATE` per head, counts per bin of width 1 / `GATE_BINS`, values per head."""
        count = max(1, self.values)
        return {
            "mean": (torch.as_tensor(self.total) / count).tolist(),
            "low": (torch.as_tensor(self.low) / count).tolist(),
            "histogram": self.histogram.tolist(),
        }


class Small:
    """How many values of the attention output are small in absolute value; exact counts and a fine histogram."""

    def __init__(self) -> None:
        self.below = [0] * len(THRESHOLDS)
        self.count = 0
        self.histogram = torch.zeros(BINS, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Take the next tokens' values, of any shape."""
        size = values.detach().float().abs().reshape(-1)
        for i, threshold in enumerate(THRESHOLDS):
            self.below[i] += int((size < threshold).sum())
        self.count += size.numel()
        # zeros and tiny values fall into the first bin
        bins = ((size.clamp_min(2.0**LOWEST).log2() - LOWEST) * OCTAVE).long().clamp_(0, BINS - 1)
        self.histogram += torch.bincount(bins, minlength=BINS).double().cpu()

    def to_plain(self) -> dict[str, Any]:
        """Counts below each threshold, number of values, and the histogram of log2 of the absolute values."""
        return {"below": self.below, "count": self.count, "histogram": self.histogram.tolist()}
