"""A sweep as one SVG: a heat map of base x factor per model (rows) and length (columns), the number in every field."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from textwrap import wrap

from harness.report.heat import ink, score_colour
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables.layout import length_title
from harness.tables.sweep import Panel, caption, field_text, panels

FIELD, LINE = 58, 26  # width and height of a field, px
GAP, LEFT, ABOVE, BELOW = 34, 64, 50, 26  # between panels; room for base labels, titles and factor labels


def sweep_svg(store: Store) -> str:
    """The heat map as a stand-alone SVG; an empty string where the run is no sweep. The same run, the same bytes."""
    found = panels(store)
    if not found:
        return ""
    models, lengths = list(dict.fromkeys(p.model for p in found)), list(dict.fromkeys(p.length for p in found))
    wide = LEFT + FIELD * len(found[0].factors) + GAP
    high = ABOVE + LINE * len(found[0].bases) + BELOW + GAP
    width = max(wide * len(lengths), 360)
    words = [part for line in caption(store, found) for part in wrap(line, (width - 20) // 6)]
    height = high * len(models) + 18 * len(words) + 12
    said = "; ".join(_said(panel) for panel in found)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(said)}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for panel in found:
        out += _panel(panel, wide * lengths.index(panel.length), high * models.index(panel.model))
    for i, line in enumerate(words):
        out.append(
            f'<text x="10" y="{high * len(models) + 18 * i + 4}" fill="#444" font-size="11">{escape(line)}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def save(store: Store) -> Path:
    """Write RUN/sweep.svg; returns the file."""
    file = store.path / "sweep.svg"
    write_atomic(file, sweep_svg(store))
    return file


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    """One map with its upper left corner at (x, y)."""
    native = "" if math.isnan(panel.native) else f"native {panel.native:.1f}"
    left, top = x + LEFT, y + ABOVE
    out = [
        f'<text x="{left}" y="{y + 20}" font-weight="600">{escape(panel.model)}, {length_title(panel.length)}</text>',
        f'<text x="{left}" y="{y + 38}" fill="#444">{native}</text>',
        f'<text x="{left + FIELD * len(panel.factors) / 2:g}" y="{top + LINE * len(panel.bases) + 34}"'
        ' text-anchor="middle" fill="#444">YaRN factor</text>',
        f'<text x="{left - 8}" y="{top - 8}" text-anchor="end" fill="#444">base</text>',
    ]
    for i, base in enumerate(panel.bases):
        out.append(f'<text x="{left - 8}" y="{top + LINE * i + 17}" text-anchor="end">{base}</text>')
        out += [_field(panel, i, j, left + FIELD * j, top + LINE * i) for j in range(len(panel.factors))]
    under = top + LINE * len(panel.bases) + 17
    return out + [
        f'<text x="{left + FIELD * (j + 0.5):g}" y="{under}" text-anchor="middle">{factor}</text>'
        for j, factor in enumerate(panel.factors)
    ]


def _field(panel: Panel, i: int, j: int, x: int, y: int) -> str:
    value, text = float(panel.values[i, j]), field_text(panel, i, j)
    colour = (240, 240, 240) if math.isnan(value) else score_colour(value)
    best = text == f"{panel.best:.1f}"
    weight = ' font-weight="700"' if best else ""
    return (
        f'<rect x="{x}" y="{y}" width="{FIELD - 2}" height="{LINE - 2}" fill="rgb{colour}"/>'
        f'<text x="{x + FIELD / 2 - 1:g}" y="{y + 17}" text-anchor="middle" fill="{ink(colour)}"{weight}>'
        f"{text}{'*' if best else ''}</text>"
    )


def _said(panel: Panel) -> str:
    """A panel for those who cannot see it."""
    fields = (
        f"base {base}, factor {factor}: {field_text(panel, i, j)}"
        for i, base in enumerate(panel.bases)
        for j, factor in enumerate(panel.factors)
    )
    return f"{panel.model} at {length_title(panel.length)}: " + ", ".join(fields)
