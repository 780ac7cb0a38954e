"""The report's templates. Jinja2 escapes every value that is not `Markup`: what a run says never becomes markup."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_ROOM = Path(__file__).parent


def render(template: str, **values: Any) -> Markup:
    """Fill templates/TEMPLATE.html.j2 with `values`; a value that the template lacks is an error."""
    return Markup(_environment().get_template(f"{template}.html.j2").render(**values))


def asset(name: str) -> Markup:
    """The page's style or script, from beside this module; it is our own text and goes into the page as it is."""
    return Markup((_ROOM / name).read_text(encoding="utf-8"))


def script() -> Markup:
    """The page's script: the files in scripts/ in the order of their names, inside one function."""
    files = sorted((_ROOM / "scripts").glob("*.js"))
    body = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return Markup(f'(async () => {{\n"use strict";\n{body}\n}})();')


def samples_link(**filters: str | int) -> str:
    """The address inside the page of the samples that `filters` choose; scripts/state.js says which there are."""
    return "#samples?" + urlencode(filters, quote_via=quote)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_ROOM / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
