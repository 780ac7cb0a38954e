"""The report's part on probes: what attention, gates and activations did inside the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.export.text import html_table
from harness.figures.curves import SCREEN_SIZE, key_figure
from harness.figures.probe import (
    Probed,
    attention_maps,
    change_figure,
    gate_histogram,
    longest_probes,
    models_of,
    profile,
)
from harness.figures.style import PX, SCREEN, drawing
from harness.figures.svg import inline
from harness.report.html import render
from harness.store import Store
from harness.tables.layout import length_title
from harness.tables.probe import probe_table
from harness.tables.sinks import changes, sinks_table

_MAP_WIDTH = 230  # CSS pixels of one attention map
_SIZE = (SCREEN_SIZE[0] * PX, SCREEN_SIZE[1] * PX)


@dataclass(frozen=True)
class Picture:
    """An SVG with what it shows: `title` is in bold above it."""

    title: str
    image: Markup


@dataclass(frozen=True)
class ContextPictures:
    """The pictures of one context setting; `length`: "2K tokens", or the lengths by model where they differ."""

    context: str
    length: str
    pictures: list[Picture]


def probe_section(store: Store) -> Markup:
    """Table, pictures and the changes beside F-Attn; empty where the run has no probe to show."""
    longest = longest_probes(store)
    if not longest:
        return Markup()
    models = models_of(store, longest)
    found = changes(store)
    with drawing(SCREEN):
        keys = [
            (m, Markup(inline(key_figure(m, models), f"probekey{i}", "")))
            for i, m in enumerate(models)
            if any(p.model == m for p in longest)
        ]
        contexts = [_context(longest, models, context, i) for i, context in enumerate(_contexts(longest))]
        maps = [_maps(p, i) for i, p in enumerate(longest) if p.maps]
        scatter = None
        if found:
            words = "; ".join(f"{c.model}, {c.context}: F-Attn {c.first:.3f}, {c.change:+.1f} points" for c in found)
            figure = change_figure(found, models, size=_SIZE, legend=False)
            scatter = Markup(inline(figure, "probechange", f"Change under an extended context over F-Attn. {words}"))
    table, beside = probe_table(store), sinks_table(store) if found else None
    return render(
        "probe",
        table=Markup(html_table(table)),
        caption=table.caption,
        keys=keys,
        contexts=contexts,
        maps=maps,
        scatter=scatter,
        changes=Markup(html_table(beside)) if beside is not None else None,
        words=beside.caption if beside is not None else [],
    )


def _contexts(longest: Sequence[Probed]) -> list[str]:
    return list(dict.fromkeys(p.record["context"] for p in longest))


def _context(longest: Sequence[Probed], models: list[str], context: str, number: int) -> ContextPictures:
    """Profiles over layers and the histogram of gates, of all models under one context setting."""
    mine = [p for p in longest if p.record["context"] == context]
    first = [(p.model, p.first_token) for p in mine]
    activations = [(p.model, p.activations) for p in mine]
    pictures = [
        Picture(
            "Attention on the first token, by layer",
            _drawn(profile(first, models, "F-Attn", size=_SIZE, legend=False), f"probefirst{number}", first, 3),
        ),
        Picture(
            "Largest activation, by layer",
            _drawn(
                profile(activations, models, "largest |activation|", log=True, size=_SIZE, legend=False),
                f"probeactivation{number}", activations, 1,
            ),
        ),
    ]  # fmt: skip
    if gated := [p for p in mine if p.gates is not None]:
        means = "; ".join(f"{p.model}: mean {p.record['gate_mean']:.3f}" for p in gated)
        image = inline(
            gate_histogram(gated, models, size=_SIZE, legend=False), f"probegates{number}", f"Gate values. {means}"
        )
        pictures.append(Picture("Gate values", Markup(image)))
    lengths = {p.record["length"] for p in mine}
    length = (
        f"{length_title(lengths.pop())} tokens"
        if len(lengths) == 1
        else ", ".join(f"{p.model} {length_title(p.record['length'])}" for p in mine)
    )
    return ContextPictures(context, length, pictures)


def _drawn(figure: Any, name: str, lines: Sequence[tuple[str, Any]], decimals: int) -> Markup:
    """A profile with its numbers in words for a screen reader."""
    words = "; ".join(f"{model}: " + ", ".join(f"{v:.{decimals}f}" for v in values) for model, values in lines)
    return Markup(inline(figure, name, f"{figure.axes[0].get_ylabel()} by layer, from layer 1 on. {words}"))


def _maps(p: Probed, number: int) -> Picture:
    figure = attention_maps(p, width=_MAP_WIDTH * PX)
    weights = "; ".join(
        f"layer {layer + 1}, head {head + 1}: mean weight on the first token {w[1:, 0].mean():.3f}"
        for (layer, head), w in p.maps.items()
    )
    title = f"{p.model}, {p.record['context']}"
    return Picture(title, Markup(inline(figure, f"probemaps{number}", f"Attention maps of {title}. {weights}")))
