"""Colours, the same in figures and in HTML tables. Colour-blind readers can tell the scales apart; models also differ
in marker and line, and fields also hold their number."""

from __future__ import annotations

Colour = tuple[int, int, int]  # red, green, blue; 0-255 each

# The colour of a run's i-th model: on white (figures, light pages), and on the report's dark page. Each has a contrast
# of 3:1 or more with its page.
MODELS = ("#4b5563", "#b4530a", "#1d5fd0", "#0b7a6b", "#a3338f", "#8a6d00", "#7a4ce0", "#b3261e")
MODELS_DARK = ("#aab4c0", "#f0a04b", "#7fb0ff", "#4fd1bd", "#ef8fd8", "#d9c04a", "#b79cff", "#ff8a80")
INK, RULE = "#1a1a1a", "#d4d4d4"  # text and axes; horizontal rules. In the report they follow the page's theme
BAR = "#6b7480"  # the line of a threshold, and its words
PAGE = "#fefefe"  # the inside of a hollow marker: the page's own colour
EMPTY: Colour = (240, 240, 240)  # a field without a score
# Control points of the scales: close to matplotlib's cividis and RdBu.
SCORES: tuple[Colour, ...] = ((0, 34, 78), (65, 77, 107), (124, 123, 120), (188, 175, 111), (254, 232, 56))
DIFFERENCES: tuple[Colour, ...] = ((178, 24, 43), (244, 165, 130), (247, 247, 247), (146, 197, 222), (33, 102, 172))


def blend(scale: tuple[Colour, ...], share: float) -> Colour:
    """The colour at `share` (0 to 1; values outside are clipped) of a scale, interpolated linearly."""
    place = min(1.0, max(0.0, share)) * (len(scale) - 1)
    i = min(int(place), len(scale) - 2)
    red, green, blue = (round(a + (b - a) * (place - i)) for a, b in zip(scale[i], scale[i + 1], strict=True))
    return red, green, blue


def score_colour(score: float) -> Colour:
    """The colour of a score, 0-100."""
    return blend(SCORES, score / 100)


def difference_colour(points: float, largest: float) -> Colour:
    """The colour of a difference in points; `largest` is the size of a difference at the ends of the scale."""
    return blend(DIFFERENCES, (points / largest + 1) / 2)


def text_colour(background: Colour) -> str:
    """Black or white, whichever has more contrast with `background` (WCAG relative luminance)."""
    channels = [(c / 255) / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return "#000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#fff"


def hex_colour(colour: Colour) -> str:
    """A colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
