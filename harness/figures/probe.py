"""Pictures of what a probe measured: profiles over layers, histograms of gates, attention maps.

They show what the paper's figures show, on the user's own checkpoints: attention on the first token by layer (Figure
6), gate scores (Figure 3), attention maps (Figure 2), largest activations by layer (Figure 5). A last one sets the
change under an extended context beside the attention on the first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.figures.style import COLUMN, look
from harness.store import Store
from harness.store.probes import Probes
from harness.tables.frames import labels
from harness.tables.layout import length_title
from harness.tables.probe import probe_records
from harness.tables.sinks import Change, changes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 128  # tokens of an attention map that a picture shows: more cannot be told apart at this size
PAPER_SIZE = (COLUMN, 2.4)  # inches


@dataclass(frozen=True)
class Probed:
    """One probe: its record and its arrays (docs/probe.md names them)."""

    record: dict[str, Any]
    arrays: dict[str, Any]

    @property
    def model(self) -> str:
        """Label of the model."""
        return str(self.record["model"])

    @property
    def first_token(self) -> Any:
        """(L,) attention on the first token by layer."""
        return self.arrays["first_layer"]

    @property
    def activations(self) -> Any:
        """(L,) largest absolute activation after each layer, the last one after the final norm."""
        return np.append(self.arrays["hidden"][:-1, 0], self.arrays["final"][0])

    @property
    def gates(self) -> Any:
        """(B,) share of all gate values in each of B bins from 0 to 1, per cent; None without a gate."""
        if self.record["gate_mean"] is None:
            return None
        counts = self.arrays["gate_histogram"].sum(axis=0)
        return 100 * counts / counts.sum()

    @property
    def maps(self) -> dict[tuple[int, int], Any]:
        """(layer, head), both from 0 -> the attention map (n, n)."""
        found = {}
        for name, weights in self.arrays.items():
            if name.startswith("map_"):
                _, layer, head = name.split("_")
                found[int(layer), int(head)] = weights
        return found


def longest_probes(store: Store) -> list[Probed]:
    """The longest probe of every model and context setting that the run's tables show, in their order."""
    records = probe_records(store)
    keys = dict.fromkeys((r["model"], r["context"]) for r in records)
    longest = [max((r for r in records if (r["model"], r["context"]) == k), key=lambda r: r["length"]) for k in keys]
    probes = Probes(store.path)
    return [Probed(record, probes.arrays(record)) for record in longest]


def models_of(store: Store, probed: Sequence[Probed]) -> list[str]:
    """All models of the run in their order: what a model looks like depends on it, in every figure alike."""
    return list(dict.fromkeys([*labels(store, "models"), *(p.model for p in probed)]))


def probe_figures(store: Store) -> Iterator[tuple[str, Figure]]:
    """Every figure of the run's probes with the name of its file; none where the run has no probes."""
    longest = longest_probes(store)
    models = models_of(store, longest)
    for context in dict.fromkeys(p.record["context"] for p in longest):
        mine = [p for p in longest if p.record["context"] == context]
        name = _file_name(context)
        title = ", ".join([context, *_length(mine)])
        yield (
            f"probe_first_token_{name}",
            titled(profile([(p.model, p.first_token) for p in mine], models, "F-Attn"), title),
        )
        yield (
            f"probe_activations_{name}",
            titled(profile([(p.model, p.activations) for p in mine], models, "largest |activation|", log=True), title),
        )
        if gated := [p for p in mine if p.gates is not None]:
            yield f"probe_gates_{name}", titled(gate_histogram(gated, models), title)
    for p in longest:
        if p.maps:
            figure = attention_maps(p)
            figure.suptitle(f"{p.model}, {p.record['context']}", fontsize=8)
            yield f"probe_maps_{_file_name(p.model)}_{_file_name(p.record['context'])}", figure
    if found := changes(store):
        yield "probe_change_against_first_token", change_figure(found, models_of(store, longest))


def _length(probed: Sequence[Probed]) -> list[str]:
    """ "2K tokens", where all have the same length."""
    lengths = {p.record["length"] for p in probed}
    return [f"{length_title(lengths.pop())} tokens"] if len(lengths) == 1 else []


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label).strip("_").lower() or "unnamed"


def titled(figure: Figure, title: str) -> Figure:
    """The figure with a title above its only panel."""
    figure.axes[0].set_title(title)
    return figure


def profile(
    lines: Sequence[tuple[str, Any]],
    models: list[str],
    quantity: str,
    *,
    log: bool = False,
    size: tuple[float, float] = PAPER_SIZE,
    legend: bool = True,
) -> Figure:
    """One line per model over the layers. `lines`: (model, one number per layer). `size`: inches."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator

    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    for model, values in lines:
        panel.plot(range(1, len(values) + 1), values, **look(model, models)._asdict(), label=model, clip_on=False)
    if log:
        panel.set_yscale("log")
        every = np.concatenate([np.asarray(values, dtype=float) for _, values in lines])
        if 0 < every.max() < 100 * every.min():  # powers of ten alone would leave an axis with one number, or none
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        panel.yaxis.set_minor_formatter(lambda value, _: "")
        panel.tick_params(axis="y", which="minor", length=0)
    else:
        panel.set_ylim(bottom=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set(xlabel="layer", ylabel=quantity)
    panel.grid(axis="y")
    if legend:
        figure.legend(loc="outside lower center", ncols=min(3, len(lines)))
    return figure


def gate_histogram(
    probed: Sequence[Probed], models: list[str], *, size: tuple[float, float] = PAPER_SIZE, legend: bool = True
) -> Figure:
    """The share of all gate values in each bin, one line per gated model."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    for p in probed:
        style = look(p.model, models)
        label = f"{p.model} (mean {p.record['gate_mean']:.3f})"
        edges = np.linspace(0, 1, len(p.gates) + 1)
        # without a baseline, which draws the edges at 0 and 1 over the axes
        panel.stairs(
            p.gates, edges, baseline=None, color=style.color, linestyle=style.linestyle,
            linewidth=rcParams["lines.linewidth"], label=label,
        )  # fmt: skip
    panel.set(xlabel="gate value", ylabel="% of gate values", xlim=(0, 1), ylim=(0, None))
    panel.grid(axis="y")
    if legend:
        figure.legend(loc="outside lower center", ncols=min(2, len(probed)))
    return figure


def attention_maps(probed: Probed, *, width: float = 2.2) -> Figure:
    """Attention maps of one model, two side by side, one colour scale. `width`: inches of one map."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    maps = probed.maps
    across, down = min(2, len(maps)), (len(maps) + 1) // 2
    figure = Figure(figsize=(across * width + 0.27 * width, 1.09 * width * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(maps) :]:
        panel.remove()
    image = None
    for panel, ((layer, head), weights) in zip(panels, maps.items(), strict=False):
        shown = weights[:_SHOWN, :_SHOWN]
        future = np.triu(np.ones_like(shown, dtype=bool), 1)
        image = panel.imshow(np.ma.masked_where(future, np.maximum(shown, 1e-4)), norm=LogNorm(1e-4, 1), cmap="viridis")
        panel.set(title=f"layer {layer + 1}, head {head + 1}", xlabel="key position", ylabel="query position")
    bar = figure.colorbar(image, ax=list(panels[: len(maps)]), label="attention weight", shrink=0.8)  # type: ignore[arg-type]
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def change_figure(
    found: Sequence[Change], models: list[str], *, size: tuple[float, float] = PAPER_SIZE, legend: bool = True
) -> Figure:
    """Points: each model's change under an extended context over its attention on the first token.

    No line is fitted: a few models prove nothing about how the two depend on each other.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    several = len({c.context for c in found}) > 1
    for change in found:
        style = look(change.model, models)
        panel.plot(
            change.first, change.change, color=style.color, marker=style.marker, linestyle="none", clip_on=False,
            label=f"{change.model}, {change.context}" if several else change.model, zorder=3,
        )  # fmt: skip
    lowest, highest = min(c.change for c in found), max(c.change for c in found)
    room = max(1.0, 0.1 * (max(highest, 0) - min(lowest, 0)))
    panel.set_ylim(min(lowest, 0) - room, max(highest, 0) + room)
    panel.set_xlim(0, max(0.05, 1.15 * max(c.first for c in found)))
    panel.axhline(0, color="0.6", linewidth=0.8, zorder=1)
    panel.set(xlabel="F-Attn under the own context", ylabel="change, points")
    panel.grid(axis="y")
    if legend:
        panel.set_title(f"{counted_models(found)}: this proves nothing", fontsize="medium")
        figure.legend(loc="outside lower center", ncols=min(2, len(found)))
    return figure


def counted_models(found: Sequence[Change]) -> str:
    """ "3 models"."""
    number = len({c.model for c in found})
    return f"{number} model" + ("" if number == 1 else "s")
