"""Figures with matplotlib: score over length, task x length, and the map of a sweep; for papers and for the report.

style.py and colours.py fix how everything looks. curves.py, heat.py and sweep.py each draw one kind of figure.
svg.py turns a figure into SVG text, and files.py saves a run's figures. matplotlib is imported when a figure is drawn.
"""

from harness.figures.files import FORMATS, save_figures

__all__ = ["FORMATS", "save_figures"]
