"""Pictures of what a probe measured: profiles over layers, histograms of gates, attention maps.

They show what the paper's figures show, on the user's own checkpoints: attention on the first token by layer (Figure
6), gate scores (Figure 3), attention maps (Figure 2), largest activations by layer (Figure 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.figures.style import COLUMN, look
from harness.store import Store
from harness.store.probes import Probes
from harness.tables.frames import labels
from harness.tables.layout import length_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 128  # tokens of an attention map that a picture shows: more cannot be told apart at this size


def probe_figures(store: Store) -> Iterator[tuple[str, Figure]]:
    """Every figure of the run's probes with the name of its file; none where the run has no probes."""
    probes = Probes(store.path)
    records = probes.records(store.manifest.get("probes"))
    if not records:
        return
    models = list(dict.fromkeys([*labels(store, "models"), *(r["model"] for r in records)]))  # looks as in all figures
    longest = [
        max((r for r in records if (r["model"], r["context"]) == key), key=lambda r: r["length"])
        for key in dict.fromkeys((r["model"], r["context"]) for r in records)
    ]
    contexts = list(dict.fromkeys(r["context"] for r in longest))
    arrays = {r["hash"]: probes.arrays(r) for r in longest}
    for context in contexts:
        mine = [r for r in longest if r["context"] == context]
        name = _file_name(context)
        first = [(r, arrays[r["hash"]]["first_layer"]) for r in mine]
        yield f"probe_first_token_{name}", _profile(first, models, "F-Attn", log=False)
        activations = [(r, np.append(arrays[r["hash"]]["hidden"][:-1, 0], arrays[r["hash"]]["final"][0])) for r in mine]
        yield f"probe_activations_{name}", _profile(activations, models, "largest |activation|", log=True)
        gated = [(r, arrays[r["hash"]]["gate_histogram"]) for r in mine if r["gate_mean"] is not None]
        if gated:
            yield f"probe_gates_{name}", _gates(gated, models)
    for record in longest:
        maps = {k: v for k, v in arrays[record["hash"]].items() if k.startswith("map_")}
        if maps:
            yield f"probe_maps_{_file_name(record['model'])}_{_file_name(record['context'])}", _maps(record, maps)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label).strip("_").lower() or "unnamed"


def _profile(lines: list[tuple[dict[str, Any], Any]], models: list[str], quantity: str, *, log: bool) -> Figure:
    """One line per model over the layers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    panel = figure.subplots()
    for record, values in lines:
        style = look(record["model"], models)._asdict()
        panel.plot(range(1, len(values) + 1), values, **style, label=record["model"], clip_on=False)
    if log:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    else:
        panel.set_ylim(bottom=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set(xlabel="layer", ylabel=quantity, title=_title(lines[0][0]))
    panel.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(3, len(lines)))
    return figure


def _gates(lines: list[tuple[dict[str, Any], Any]], models: list[str]) -> Figure:
    """The share of all gate values in each bin, one line per gated model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    panel = figure.subplots()
    for record, histogram in lines:
        counts = histogram.sum(axis=0)
        style = look(record["model"], models)
        edges = np.linspace(0, 1, len(counts) + 1)
        label = f"{record['model']} (mean {record['gate_mean']:.3f})"
        panel.stairs(100 * counts / counts.sum(), edges, color=style.color, linestyle=style.linestyle, label=label)
    panel.set(xlabel="gate value", ylabel="% of gate values", title=_title(lines[0][0]), xlim=(0, 1), ylim=(0, None))
    panel.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(2, len(lines)))
    return figure


def _maps(record: dict[str, Any], maps: dict[str, Any]) -> Figure:
    """Attention maps of one model, side by side, one colour scale."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(2, len(maps)) * 2.2 + 0.6, 2.4 * ((len(maps) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(maps) + 1) // 2, min(2, len(maps)), squeeze=False).ravel()
    for panel in panels[len(maps) :]:
        panel.remove()
    image = None
    for panel, (name, weights) in zip(panels, maps.items(), strict=False):
        _, layer, head = name.split("_")
        shown = weights[:_SHOWN, :_SHOWN]
        future = np.triu(np.ones_like(shown, dtype=bool), 1)
        image = panel.imshow(np.ma.masked_where(future, np.maximum(shown, 1e-4)), norm=LogNorm(1e-4, 1), cmap="viridis")
        panel.set(title=f"layer {int(layer) + 1}, head {int(head) + 1}", xlabel="key position", ylabel="query position")
    bar = figure.colorbar(image, ax=list(panels[: len(maps)]), label="attention weight", shrink=0.8)  # type: ignore[arg-type]
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(f"{record['model']}, {record['context']}", fontsize=8)
    return figure


def _title(record: dict[str, Any]) -> str:
    return f"{record['context']}, {length_title(record['length'])} tokens"
