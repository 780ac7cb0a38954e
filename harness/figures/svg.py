"""A matplotlib figure as SVG text: a document of its own, or an element inside the report."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.figures.colours import BAR, INK, MODELS, PAGE, RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # a label may have control characters
# What the page decides: the font, and the colours of text, axes, rules and models (so that dark pages have light ones).
_FROM_PAGE = (
    (re.compile(r"font-family: [^;]+;? ?"), ""),
    (re.compile(rf": {INK}\b"), ": currentColor"),
    (re.compile(rf": {RULE}\b"), ": var(--line)"),
    (re.compile(rf": {BAR}\b"), ": var(--soft)"),
    (re.compile(rf": {PAGE}\b"), ": var(--bg)"),
    *((re.compile(rf": {colour}\b"), f": var(--m{i})") for i, colour in enumerate(MODELS)),
)


def stand_alone(figure: Figure, description: str = "") -> str:
    """A document on white; `description` is for readers who cannot see it. The same figure gives the same text."""
    root = _root(figure, transparent=False)
    if description:
        _describe(root, description)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_text(root)}\n'


def inline(
    figure: Figure, name: str, description: str, tips: Mapping[str, Sequence[tuple[str, str]]] | None = None
) -> str:
    """An `<svg>` element for a page with the CSS variables `--line`, `--soft`, `--bg` and `--m0` to `--m7`.

    `name` goes before every id, because ids must be unique in the page. `tips`: SVG group -> for each of its markers,
    what it shows when the mouse is over it, and the address that it leads to. An empty description hides the element
    from screen readers.
    """
    root = _root(figure, transparent=True)
    if description:
        _describe(root, description)
    else:
        root.set("aria-hidden", "true")
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == f"{{{_XLINK}}}href" and value.startswith("#"):  # an image has its data in place of an id
                element.set(key, f"#{name}-{value.removeprefix('#')}")
            elif key == "clip-path":
                element.set(key, value.replace("url(#", f"url(#{name}-"))
            elif key == "style":
                for pattern, replacement in _FROM_PAGE:
                    value = pattern.sub(replacement, value)
                element.set(key, value)
    for group, pairs in (tips or {}).items():
        parents = [
            (parent, child)
            for parent in root.findall(f".//{{{_SVG}}}g[@id='{name}-{group}']//{{{_SVG}}}use/..")
            for child in list(parent)
            if child.tag == f"{{{_SVG}}}use"
        ]
        for (parent, marker), (text, address) in zip(parents, pairs, strict=True):
            ET.SubElement(marker, f"{{{_SVG}}}title").text = text
            link = ET.Element(f"{{{_SVG}}}a", {"href": address, "aria-label": text})
            parent[list(parent).index(marker)] = link
            link.append(marker)
    for element in root.iter():  # lines between elements are most of what is not needed
        element.tail = None
        if element.text and not element.text.strip():
            element.text = None
    return _text(root)


def _root(figure: Figure, *, transparent: bool) -> ET.Element:
    """What matplotlib writes, without the date and its own name, as a tree. Sizes are plain numbers: CSS pixels."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # text stays text: the reader's fonts have it
        figure.savefig(out, format="svg", transparent=transparent, metadata=nothing)
    root = ET.fromstring(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", out.getvalue()))
    for parent in list(root.iter()):
        for child in list(parent):
            unused = child.tag == f"{{{_SVG}}}metadata" or (transparent and child.tag == f"{{{_SVG}}}style")
            if unused:
                parent.remove(child)
    for side in ("width", "height"):
        root.set(side, root.attrib[side].removesuffix("pt"))
    return root


def _describe(root: ET.Element, description: str) -> None:
    root.set("role", "img")
    root.set("aria-label", description)


def _text(root: ET.Element) -> str:
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")
