"""The report: complete, small, harmless, and usable in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.engine.requests import Prompt, SampleRequest
from harness.figures.colours import DIFFERENCES, MODELS, MODELS_DARK, SCORES, blend, text_colour
from harness.report import report, write_report
from harness.report.excerpts import options_of, prompt_parts
from harness.report.facts import duration
from harness.report.heat import heat_table
from harness.report.pairs import pair_counts
from harness.report.samples import browser_data
from harness.report.verdict import verdicts
from harness.run.producing import _excerpt
from harness.store import Store
from harness.tables import table5
from harness.tables.compare import compare
from harness.tables.comparisons import lines
from harness.tables.curves import Grid, curves, difference_grid, grids_of, needle_grid, task_grid
from harness.tables.frames import ordered_cells
from harness.types import Cell, GatedevalError
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support.sample_runs import answer, config, sample, table5_cells, write_run

EVIL = "<script>window.evil = 1</script></style></script><img src=x onerror='window.evil = 1'> & \"quoted\""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, two contexts, needles with depths and excerpts, one answer and one label that try to break out."""
    settings = config(models=("baseline", "<b>gated</b>"), lengths=(4096, 8192, 16384))
    cells = table5_cells(settings, 12)
    path = tmp_path_factory.mktemp("report") / "run"
    with Store.open(path, {"config": settings, "caption": [EVIL], "seed": 1}, cells=cells) as store:
        for cell in cells:
            skill = 0.9 if cell.model == "baseline" else 0.5
            for i in range(12):
                extra = {
                    "prompt_hash": f"{cell.task} {cell.length} {i}",
                    "ruler": {"depth": i / 12},
                    "prompt": {"head": "Some text.", "tail": "What is it?", "needles": [f"... it is {1000 + i}. Next"]},
                }
                response = EVIL if i == 3 else f"It is {1000 + i}."
                store.append(
                    cell, replace(answer(cell, i, skill), references=[str(1000 + i)], response=response, extra=extra)
                )
        store.finish()
    return path


def unpack(text: str) -> dict[str, Any]:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_the_page_holds_every_part_and_every_sample(run: Path) -> None:
    page = report(Store.read(run))
    for part in ("verdict", "comparison", "curves", "tasks", "needles", "pairs", "samples"):
        assert f'<section id="{part}">' in page
        assert f'href="#{part}"' in page
    data = unpack(page.split('id="data">')[1].split("</script>")[0])
    store = Store.read(run)
    assert [cell["key"] for cell in data["cells"]] == [cell.key for cell in ordered_cells(store)]
    assert all(cell["ids"] == len(cell["answers"]) == 12 for cell in data["cells"])
    assert sum(cell["ids"] for cell in data["cells"]) == len(data["answers"])
    cell = next(c for c in data["cells"] if (c["task"], c["length"]) == ("niah_single_1", 4096))
    references, parts, options, depth = data["questions"][cell["questions"][5]]
    assert references == ["1005"]
    assert ["needle", "... it is 1005. Next"] not in parts, "it begins and ends between words"
    assert parts == [["head", "Some"], ["needle", "it is 1005."], ["tail", "is it?"]]
    assert (options, depth) == ([], pytest.approx(5 / 12))
    assert len(data["questions"]) < len(data["answers"]), "the models' common texts are there once"


class Elements(HTMLParser):
    """What a browser would build of a page: its elements with their attributes, and its visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.found if "id" in attributes]


def test_no_text_of_a_run_becomes_markup(run: Path) -> None:
    page = Elements(report(Store.read(run)))
    tags = [tag for tag, _ in page.found]
    assert tags.count("script") == 2, "the data and the browser's own script"
    assert not {"img", "iframe", "link", "object"} & set(tags)
    assert not [key for _, attributes in page.found for key in attributes if key.startswith("on")]
    assert EVIL in page.texts, "the caption shows it as it is"
    assert "<b>gated</b>" in page.texts
    links = [v for _, attributes in page.found for k, v in attributes.items() if k in ("src", "href", "xlink:href")]
    assert links
    assert all(link and link.startswith("#") for link in links), "nothing is loaded"
    policy = next(a["content"] for _, a in page.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_references_inside_the_page_are_unique_and_lead_somewhere(run: Path) -> None:
    text = report(Store.read(run))
    page = Elements(text)
    ids = page.ids()
    assert len(ids) == len(set(ids)), "several figures in one page keep their parts apart"
    links = [str(v)[1:] for _, attributes in page.found for k, v in attributes.items() if k.endswith("href")]
    places = {link.split("?")[0] for link in links}
    assert places | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_the_same_run_gives_the_same_page(run: Path) -> None:
    assert report(Store.read(run)) == report(Store.read(run))


def test_charts_say_their_numbers_and_take_the_colours_of_the_page(run: Path) -> None:
    store = Store.read(run)
    page = Elements(report(store))
    charts = [a for tag, a in page.found if tag == "svg" and (a.get("aria-label") or "").startswith("RULER, ")]
    assert len(charts) == 4, "one per context, over the range of the data and over 0-100"
    for curve in curves(store):
        label = next(
            a["aria-label"] or "" for a in charts if (a["aria-label"] or "").startswith(f"RULER, {curve.context}")
        )
        assert f"{curve.model}: 4K {curve.scores[0]:.1f}, 8K {curve.scores[1]:.1f}" in label
        low, high = curve.lows[0], curve.highs[0]
        tip = f"{curve.model}, 4K: {curve.scores[0]:.2f} [{low:.2f}, {high:.2f}], 12 samples per task"
        assert tip in page.texts, "shown on hovering"
    styles = [a.get("style") or "" for _, a in page.found]
    assert any("currentColor" in style for style in styles)
    assert not [style for style in styles if "#1a1a1a" in style], "dark text on a dark page"


def test_the_report_is_a_file_of_its_own(run: Path, tmp_path: Path) -> None:
    assert write_report(run, tmp_path / "x.html").read_text() == report(Store.read(run))
    assert write_report(run) == run / "report.html"


def test_curves_stop_where_the_context_does(run: Path) -> None:
    found = {(c.model, c.context): c for c in curves(Store.read(run))}
    assert found["baseline", "8k"].lengths == [4096, 8192]
    assert found["baseline", "YaRN"].lengths == [4096, 8192, 16384]
    curve = found["baseline", "8k"]
    assert all(low < score < high for low, score, high in zip(curve.lows, curve.scores, curve.highs, strict=True))


def test_grids_are_means_of_the_samples(run: Path) -> None:
    store = Store.read(run)
    grid, other = task_grid(store, "baseline", "YaRN"), task_grid(store, "<b>gated</b>", "YaRN")
    assert grid is not None
    assert other is not None
    assert grid.rows == list(RULER_TASKS)
    scores = store.scores(Cell("baseline", "YaRN", "ruler", "vt", 8192)).scores
    assert grid.values[grid.rows.index("vt"), 1] == pytest.approx(100 * scores.mean())
    assert np.allclose(difference_grid(grid, other).values, other.values - grid.values)
    needles = needle_grid(store, "baseline", "YaRN", "niah_single_1", bins=6)
    assert needles is not None
    assert needles.counts.tolist() == [[2, 2, 2]] * 6
    scores = store.scores(Cell("baseline", "YaRN", "ruler", "niah_single_1", 4096)).scores
    assert needles.values[:, 0].tolist() == pytest.approx((100 * scores.reshape(6, 2).mean(axis=1)).tolist())
    assert task_grid(store, "nobody", "YaRN") is None


def test_no_depths_no_needle_grid(tmp_path: Path) -> None:
    cell = Cell("m", "c", "ruler", "niah_single_1", 4096)
    with Store.open(tmp_path / "r", {}, cells={cell: 1}) as store:
        store.append(cell, sample(0, {"score": 1.0}))
        assert needle_grid(store, "m", "c", "niah_single_1") is None
        assert 'id="needles"' not in report(store)


def test_every_model_is_mapped_against_the_first_of_its_context(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", config(models=("a", "b", "c"), lengths=(4096, 8192)), n=3)
    store = Store.read(run)
    titles = [[g.title for g in differences] for _, _, differences in grids_of(store)]
    assert titles == [["b minus a, 8k", "c minus a, 8k"], ["b minus a, YaRN", "c minus a, YaRN"]]
    assert [[g.title for g in d] for _, _, d in grids_of(store, "b", "c")] == [["c minus b, 8k"], ["c minus b, YaRN"]]
    with pytest.raises(GatedevalError, match="no model 'nobody'"):
        list(grids_of(store, "nobody"))
    page = report(store)
    assert page.count("minus a, YaRN") == 2
    pattern = (
        r'<td class="text">a</td><td class="text">YaRN</td><td class="text">4K to 8K</td><td>(below 4K|4K|8K)</td>'
    )
    assert re.search(pattern + r"(<td>[\d.]+</td>){4}</tr>", page), "mean height, average, both weighted averages"


def test_unequal_sample_counts_stand_over_the_columns() -> None:
    grid = Grid(
        title="t", rows=["a", "b"], columns=[256, 8192], values=np.ones((2, 2)), counts=np.array([[100, 5]] * 2)
    )
    assert re.findall(r"n = \d+", heat_table(grid)) == ["n = 100", "n = 5"]
    equal = Grid(title="t", rows=["a"], columns=[256, 8192], values=np.ones((1, 2)), counts=np.array([[100, 100]]))
    assert "n = " not in heat_table(equal)


def test_needle_grids_fold_away(run: Path) -> None:
    page = report(Store.read(run))
    assert page.count("<details open><summary>niah_") == 1
    assert page.count("<details><summary>niah_") == len([t for t in RULER_TASKS if t.startswith("niah_")]) - 1


def test_a_missing_field_is_a_dash_and_never_a_colour() -> None:
    grid = Grid(
        title="t", rows=["a"], columns=[4096, 8192], values=np.array([[np.nan, 0.0]]), counts=np.array([[0, 5]])
    )
    assert re.findall(r"<td.*?</td>", heat_table(grid))[0] == "<td>\N{EN DASH}</td>"
    assert ">0.0</td>" in heat_table(grid)


def test_text_can_be_read_on_every_colour() -> None:
    for scale in (SCORES, DIFFERENCES):
        for i in range(101):
            colour = blend(scale, i / 100)
            ink = (255, 255, 255) if text_colour(colour) == "#fff" else (0, 0, 0)
            assert contrast(colour, ink) >= 4.5, "WCAG AA"


def test_every_model_has_one_colour_that_can_be_seen() -> None:
    for colours, page in ((MODELS, "#ffffff"), (MODELS_DARK, "#14171b")):
        assert len(set(colours)) == len(MODELS)
        for colour in colours:
            assert contrast(rgb(colour), rgb(page)) >= 3, colour


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def contrast(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """The contrast ratio of two colours, as WCAG defines it."""

    def luminance(c: tuple[int, ...]) -> float:
        linear = [(v / 255) / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in c]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    settings = config(lengths=(4096,))
    Store.open(tmp_path / "r", {"config": settings}, cells=table5_cells(settings)).finish()
    page = report(Store.read(tmp_path / "r"))
    assert 'id="curves"' not in page
    data = unpack(page.split('id="data">')[1].split("</script>")[0])
    assert {cell["ids"] for cell in data["cells"]} == {0}
    assert 'id="pairs"' not in page


def test_texts_are_given_up_before_scores(run: Path) -> None:
    store = Store.read(run)
    packed, samples, rows, texts = browser_data(store, budget=14_000)
    data = unpack(packed)
    assert len(packed) <= 14_000
    assert samples == rows == sum(c["ids"] for c in data["cells"]) == 12 * len(store.cells)
    assert 0 < texts == len(data["answers"]) < samples
    assert sorted(i for c in data["cells"] for i in c["answers"] if i >= 0) == list(range(texts))
    scores: dict[Any, set[Any]] = {}
    for cell in data["cells"]:
        for id, score in enumerate(cell["scores"][0]):
            scores.setdefault((cell["context"], cell["task"], cell["length"], id), set()).add(score)
    shown = [
        any(len(scores.get((context, c["task"], c["length"], id), ())) > 1 for context in ("8k", "YaRN"))
        for c in data["cells"]
        for id, text in enumerate(c["answers"])
        if text >= 0
    ]
    assert np.mean(shown) > 0.9, "those on which the models disagree come first"


def test_scores_are_given_up_where_they_alone_do_not_fit(run: Path) -> None:
    store = Store.read(run)
    packed, samples, rows, texts = browser_data(store, budget=3_600)
    data = unpack(packed)
    assert len(packed) <= 3_600
    counts = [c["ids"] if isinstance(c["ids"], int) else len(c["ids"]) for c in data["cells"]]
    assert 100 < rows == sum(counts) < samples == 12 * len(store.cells)
    assert texts == len(data["answers"])


# ---------------------------------------------------------------------------------------- verdict, table, pairs


def test_the_verdict_is_the_sentence_of_compare(run: Path) -> None:
    found, untold = verdicts(Store.read(run))
    assert not untold
    assert [(v.baseline, v.candidate) for v in found] == [("baseline", "<b>gated</b>")]
    told = " ".join(compare(run, listed=0).split())
    for text in [*found[0].sentences, *found[0].counts]:
        words = re.sub(r"^The largest difference: ", "", text).split(", ", 1)[-1].removesuffix(".")
        assert words.removesuffix(" `--style delta` shows each") in told
    page = report(Store.read(run))
    assert page.index('<section id="verdict">') < page.index('<section id="comparison">')
    assert page.count('<i class="dot"') == len(found[0].rows)


def test_the_verdict_says_who_is_better_and_by_how_much(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "r", config(lengths=(4096, 8192)), n=60, skill=lambda c: 0.95 if c.model == "gated" else 0.3
    )
    verdict = verdicts(Store.read(run))[0][0]
    assert re.fullmatch(
        r"Of \d+ comparisons with baseline, gated is better in \d+ \(by \d+\.\d to \d+\.\d points\)\.", verdict.lead
    )
    assert set(verdict.marks.values()) == {"▲"}
    assert "▲</b></a>" in report(Store.read(run)), "the map marks what is significant"


def test_the_table_has_the_numbers_and_marks_of_the_terminal(run: Path) -> None:
    page = report(Store.read(run)).split('<table class="main"')[1].split("</table>")[0]
    text = [t.strip() for t in Elements(page).texts if t.strip()]
    table = table5(Store.read(run))
    for row in table.rows:
        for entry in row[2:]:
            assert entry.number in text
            assert not entry.marks or entry.marks in text
    sections = re.findall(r"<b>(.*?)</b> <span>(.*?)</span>", page)
    assert sections == [
        ("8k", "RoPE base 1,000,000; at most 8,192 tokens of prompt and answer."),
        (
            "YaRN",
            "RoPE base 1,000,000; YaRN factor 4 over 32,768 original tokens; "
            "at most 32,768 tokens of prompt and answer.",
        ),
    ]
    assert page.count('class="swatch" style="background:var(--m1)"') == 2, "one colour per model, in every context"


def test_pairs_are_counted_as_compare_counts_them(run: Path) -> None:
    store = Store.read(run)
    cells = ordered_cells(store)
    counted = {(cells[i], cells[j], metric): row for i, j, metric, *row in pair_counts(store)}
    a, b = (Cell(m, "YaRN", "ruler", "vt", 8192) for m in ("baseline", "<b>gated</b>"))
    x, y = store.scores(a).scores, store.scores(b).scores
    gained, lost, right, wrong, points = counted[a, b, 0]
    assert (gained, lost) == (int((y > x).sum()), int((y < x).sum()))
    assert (right, wrong) == (int(((x == 1) & (y == 1)).sum()), int(((x == y) & (x < 1)).sum()))
    assert gained + lost + right + wrong == 12
    assert points == pytest.approx(100 * (y - x).mean(), abs=0.051)
    found, _ = lines(store, "baseline", "<b>gated</b>")
    (line,) = (x for x in found if (x.context, x.task, x.length) == ("YaRN", "vt", 8192))
    assert (line.comparison.gained, line.comparison.lost) == (gained, lost)
    assert (a, Cell("baseline", "8k", "ruler", "vt", 8192), 0) in counted or (
        Cell("baseline", "8k", "ruler", "vt", 8192),
        a,
        0,
    ) in counted, "one model under two context settings is a pair too"
    assert all((p.model == q.model) != (p.context == q.context) for p, q, _ in counted)


def test_other_prompts_are_no_pair_but_a_reason(tmp_path: Path) -> None:
    cells = [Cell(m, "c", "ruler", "vt", 4096) for m in ("a", "b")]
    with Store.open(tmp_path / "r", {}, cells=dict.fromkeys(cells, 1)) as store:
        for cell in cells:
            store.append(cell, sample(0, {"score": 1.0}, prompt=f"prompt of {cell.model}"))
        store.finish()
        ((*_, reason),) = pair_counts(store)
    assert "were asked different things" in reason
    assert "were asked different things" in report(Store.read(tmp_path / "r"))


# ---------------------------------------------------------------------------------------- prompts and options


def prompt(**parts: Any) -> Any:
    return sample(0, {"score": 1.0}, **{"prompt": parts})


@pytest.mark.parametrize("length", [20, 300, 310, 450, 599, 600])
def test_parts_of_a_prompt_never_overlap(length: int) -> None:
    words = " ".join(f"word{i}" for i in range(200))
    text = words[:length]
    stored = {"head": text[:300], "tail": text[-300:] if len(text) > 300 else "", "needles": []}
    parts = prompt_parts(replace(sample(0, {"score": 1.0}), extra={"prompt": stored}))
    assert "".join(p for _, p in parts) == text if length < 580 else len(parts) <= 2
    if length < 580:
        assert [kind for kind, _ in parts] == ["prompt"], "all of it is there"


def test_parts_of_a_prompt_are_cut_between_words() -> None:
    words = [f"word{i}" for i in range(4000)]
    text = " ".join(words)
    at = text.index("word2000")
    stored = {
        "head": text[:300],
        "tail": text[-300:],
        "needles": [text[at - 33 : at + 57], text[at - 33 : at + 57], text[:40], text[at + 30 : at + 120]],
    }
    parts = prompt_parts(replace(sample(0, {"score": 1.0}), extra={"prompt": stored}))
    assert [kind for kind, _ in parts] == ["head", "needle", "tail"], "what another part shows is not repeated"
    for _, part in parts:
        assert part in text
        assert set(part.split()) <= set(words), "no half words"
    assert "word2000" in parts[1][1]


def test_options_are_worded_as_in_the_prompt() -> None:
    stored = {"head": "Which is a drink?\nA. storm\nB. mill\nC. milk\nAnswer:", "tail": "", "needles": []}
    choice = replace(
        sample(0, {"acc": 1.0}, finish_reason="choose"), extra={"prompt": stored, "options": [" A", " B", " C"]}
    )
    assert options_of(choice) == ["A. storm", "B. mill", "C. milk"]
    assert options_of(replace(choice, extra={"options": [" a whole sentence", " another"]})) == [
        "a whole sentence",
        "another",
    ]


def test_facts_in_words() -> None:
    assert [duration(s) for s in (12, 160, 11100)] == ["12 s", "2 min 40 s", "3 h 5 min"]


def test_the_report_has_the_names_that_the_run_chose(tmp_path: Path) -> None:
    settings = config(lengths=(4096, 8192), tasks=("vt",), table={"rename": {"gated": "SDPA gate"}, "lengths": [8192]})
    page = report(Store.read(write_run(tmp_path / "r", settings, n=3)))
    data = unpack(page.split('id="data">')[1].split("</script>")[0])
    assert data["models"] == ["baseline", "SDPA gate"]
    assert {cell["model"] for cell in data["cells"]} == {"baseline", "SDPA gate"}
    assert "SDPA gate</th>" in page
    assert "<th>8K</th>" in page
    assert "<th>4K</th>" not in page.split("</table>")[0]


def test_a_transposed_table_stays_a_table(tmp_path: Path) -> None:
    settings = config(lengths=(4096,), tasks=("vt",), table={"transpose": True})
    page = report(Store.read(write_run(tmp_path / "r", settings, n=3)))
    section = page.split('<section id="comparison">')[1].split("</section>")[0]
    assert "RULER 1/13 4K" in section


@pytest.mark.parametrize(("characters", "whole"), [(200, True), (600, True), (601, False), (5000, False)])
def test_what_is_stored_of_a_prompt_is_whole_or_apart_and_between_words(characters: int, whole: bool) -> None:
    words = [f"word{i}" for i in range(2000)]
    text = " ".join(words)[:characters]
    ids = list(range(400))
    sent = Prompt(key="0", ids=ids, max_tokens=8)
    request = SampleRequest(id="0", label="x", prompt=text, request=sent, extra={"ruler": {"evidence_tokens": [200]}})
    tokenizer = SimpleNamespace(decode=lambda part: "d" + " ".join(words[i] for i in part) + " wo")
    stored = _excerpt(SimpleNamespace(tokenizer=tokenizer), request)  # type: ignore[arg-type]
    if whole:
        assert (stored["head"], stored["tail"]) == (text, "")
    else:
        assert text.startswith(stored["head"] + " ")
        assert text.endswith(" " + stored["tail"])
        assert len(stored["head"]) + len(stored["tail"]) <= 600
    (needle,) = stored["needles"]
    assert set(needle.split()) <= set(words), "no half words"
    assert "word200" in needle.split()
