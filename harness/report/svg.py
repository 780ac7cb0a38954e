"""Score-versus-length curves as inline SVG: no script, colours from the page's style, readable without colour."""

from __future__ import annotations

from html import escape

from harness.tables.curves import Curve
from harness.tables.layout import length_title

# Okabe & Ito's palette: told apart under every common kind of colour blindness. Dash and marker say the same again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 40


def marker(kind: int, x: float, y: float) -> str:
    """A circle, square, triangle or diamond at (x, y)."""
    r = 4.5
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
        f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>',
        f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r}h-{2 * r + 2}z"/>',
        f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l-{r + 1} {r + 1}l-{r + 1}-{r + 1}z"/>',
    )
    return shapes[kind % len(shapes)]


def curve_chart(curves: list[Curve], lengths: list[int], models: list[str], title: str) -> str:
    """One chart: a line per model over log-spaced lengths, 0-100, with 95% bars. `models` fixes colours over charts."""

    def x(length: int) -> float:
        step = (WIDTH - LEFT - RIGHT - 24) / max(1, len(lengths) - 1)
        return LEFT + 12 + (step * lengths.index(length) if len(lengths) > 1 else step / 2)

    def y(score: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(100.0, max(0.0, score)) / 100)

    said = "; ".join(
        f"{c.model}: " + ", ".join(f"{length_title(n)} {s:.1f}" for n, s in zip(c.lengths, c.scores, strict=True))
        for c in curves
    )
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}. {escape(said)}">']
    for tick in range(0, 101, 20):
        out.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    out += [
        f'<text x="{x(length):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{length_title(length)}</text>'
        for length in lengths
    ]
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">length, tokens</text>')
    for curve in curves:
        kind = models.index(curve.model)
        colour, dash = COLOURS[kind % len(COLOURS)], DASHES[kind % len(DASHES)]
        shift = (curves.index(curve) - (len(curves) - 1) / 2) * 5  # bars of different models stand beside one another
        points = [(x(n) + shift, y(s)) for n, s in zip(curve.lengths, curve.scores, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f'<g style="--c:{colour}" class="curve"><polyline points="{path}" stroke-dasharray="{dash}"/>')
        for (a, b), n, s, low, high in zip(points, curve.lengths, curve.scores, curve.lows, curve.highs, strict=True):
            tip = f"{curve.model}, {length_title(n)}: {s:.2f} [{low:.2f}, {high:.2f}]"
            out.append(
                f'<g><title>{escape(tip)}</title><line x1="{a:.1f}" x2="{a:.1f}" y1="{y(low):.1f}" '
                f'y2="{y(high):.1f}"/>{marker(kind, a, b)}</g>'
            )
        out.append("</g>")
    return "\n".join([*out, "</svg>"])


def legend(models: list[str], shown: list[str]) -> str:
    """The key to colours, dashes and markers, as HTML; `models` fixes them, `shown` are those that have a curve."""
    items = []
    for kind, model in enumerate(models):
        if model not in shown:
            continue
        items.append(
            f'<span class="key"><svg viewBox="0 0 44 14" width="44" height="14" aria-hidden="true">'
            f'<g style="--c:{COLOURS[kind % len(COLOURS)]}" class="curve">'
            f'<polyline points="0,7 44,7" stroke-dasharray="{DASHES[kind % len(DASHES)]}"/>'
            f"{marker(kind, 22, 7)}</g></svg> {escape(model)}</span>"
        )
    return f'<p class="legend">{"".join(items)}</p>'
