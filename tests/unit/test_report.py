"""The report: complete, small, harmless, and usable in a real browser."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.figures.colours import DIFFERENCES, SCORES, blend, text_colour
from harness.report import report, write_report
from harness.report.heat import heat_table
from harness.report.samples import browser_data
from harness.store import Store
from harness.store.files import to_line
from harness.tables.curves import Grid, curves, difference_grid, grids_of, needle_grid, task_grid
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
    for part in ("comparison", "curves", "tasks", "needles", "samples"):
        assert f'<section id="{part}">' in page
        assert f'href="#{part}"' in page
    data = unpack(page.split('id="data">')[1].split("</script>")[0])
    store = Store.read(run)
    assert len(data["rows"]) == 12 * len(store.cells) == len(data["texts"])
    row = next(r for r in data["rows"] if data["cells"][r[0]][3:] == ["niah_single_1", 4096] and r[1] == "5")
    assert data["texts"][row[5]][0] == ["1005"]
    assert data["texts"][row[5]][4] == ["... it is 1005. Next"]


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
    assert set(links + re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_the_same_run_gives_the_same_page(run: Path) -> None:
    assert report(Store.read(run)) == report(Store.read(run))


def test_charts_say_their_numbers_and_take_the_colours_of_the_page(run: Path) -> None:
    store = Store.read(run)
    page = Elements(report(store))
    charts = [a for tag, a in page.found if tag == "svg" and (a.get("aria-label") or "").startswith("RULER, ")]
    assert len(charts) == 2, "one per context"
    for curve in curves(store):
        label = next(
            a["aria-label"] or "" for a in charts if (a["aria-label"] or "").startswith(f"RULER, {curve.context}")
        )
        assert f"{curve.model}: 4K {curve.scores[0]:.1f}, 8K {curve.scores[1]:.1f}" in label
        low, high = curve.lows[0], curve.highs[0]
        assert f"{curve.model}, 4K: {curve.scores[0]:.2f} [{low:.2f}, {high:.2f}]" in page.texts, "shown on hovering"
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
    assert re.search(r'<td class="text">a</td><td class="text">YaRN</td><td>(&lt; 4K|4K|8K)</td><td>[\d.]+</td>', page)


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
    def luminance(c: tuple[int, ...]) -> float:
        linear = [(v / 255) / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in c]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for scale in (SCORES, DIFFERENCES):
        for i in range(101):
            colour = blend(scale, i / 100)
            a, b = luminance(colour), 1.0 if text_colour(colour) == "#fff" else 0.0
            assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5, "WCAG AA"


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    settings = config(lengths=(4096,))
    Store.open(tmp_path / "r", {"config": settings}, cells=table5_cells(settings)).finish()
    page = report(Store.read(tmp_path / "r"))
    assert 'id="curves"' not in page
    assert unpack(page.split('id="data">')[1].split("</script>")[0])["rows"] == []


def test_texts_are_given_up_before_scores(run: Path) -> None:
    store = Store.read(run)
    packed, samples, rows, texts = browser_data(store, budget=10_000)
    data = unpack(packed)
    assert len(packed) <= 10_000
    assert samples == rows == len(data["rows"]) == 12 * len(store.cells)
    assert 0 < texts == len(data["texts"]) < samples
    assert {r[5] for r in data["rows"]} == {-1, *range(texts)}
    seen: dict[Any, set[Any]] = {}
    for r in data["rows"]:
        seen.setdefault((*data["cells"][r[0]][1:], r[1]), set()).add(r[2])
    shown = [len(seen[(*data["cells"][r[0]][1:], r[1])]) > 1 for r in data["rows"] if r[5] >= 0]
    assert np.mean(shown) > 0.9, "those on which the models disagree come first"


def test_scores_are_given_up_where_they_alone_do_not_fit(run: Path) -> None:
    store = Store.read(run)
    packed, samples, rows, texts = browser_data(store, budget=4_000)
    data = unpack(packed)
    assert len(packed) <= 4_000
    assert 100 < rows == len(data["rows"]) < samples == 12 * len(store.cells)
    assert texts == len(data["texts"])


@pytest.mark.slow
def test_the_full_grid_stays_under_five_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 7)) for _ in range(30_000)]
    settings = config(lengths=[4096 << i for i in range(6)])
    settings["contexts"] = [{"label": "YaRN", "max_length": 131072}]
    settings["benchmarks"] = settings["benchmarks"][:1]
    cells: dict[Cell, int | None] = {
        Cell(m["label"], "YaRN", "ruler", t, n): 500
        for m in settings["models"]
        for n in settings["benchmarks"][0]["lengths"]
        for t in RULER_TASKS
    }
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell in cells:
            store.samples_path(cell).write_bytes(
                b"".join(
                    to_line(asdict(replace(answer(cell, i, 0.7), response=" ".join(rng.choice(words, 60)))))
                    for i in range(500)
                )
            )
    assert write_report(tmp_path / "r").stat().st_size < 5_000_000


# ------------------------------------------------------------------------------------------- in a real browser


@pytest.fixture(scope="module")
def browser(run: Path) -> Iterator[Any]:
    """Debian's chromium, headless, with the report open from file://."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium to drive a browser")
    chrome, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chrome is None or driver is None:
        pytest.skip("needs a browser: Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chrome
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture
def page(browser: Any, run: Path) -> Any:
    browser.get(write_report(run).as_uri())
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: " samples, page " in b.find_element("id", "status").text)
    return browser


def status(page: Any) -> int:
    return int(page.find_element("id", "status").text.split(" of ")[0].replace(",", ""))


def choose(page: Any, id: str, value: str) -> None:
    page.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1]; "
        "e.dispatchEvent(new Event('input', {bubbles: true}))",
        id,
        value,
    )


def unfold(page: Any) -> None:
    """Open the first sample and wait for its texts: the browser tells of the opening a moment later."""
    from selenium.webdriver.support.ui import WebDriverWait

    page.find_element("css selector", "#list summary").click()
    WebDriverWait(page, 10).until(lambda b: b.find_elements("css selector", "#list details > div"))


def test_it_loads_without_complaint_and_loads_nothing(page: Any) -> None:
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert len(page.find_elements("css selector", "#list details")) == 50


def test_filters_find_what_they_say(page: Any, run: Path) -> None:
    store = Store.read(run)
    choose(page, "f-model", "baseline")
    assert status(page) == 12 * sum(c.model == "baseline" for c in store.cells)
    choose(page, "f-task", "vt")
    choose(page, "f-length", "8192")
    assert status(page) == 24
    choose(page, "f-context", "YaRN")
    choose(page, "f-outcome", "wrong")
    scores = store.scores(Cell("baseline", "YaRN", "ruler", "vt", 8192)).scores
    assert status(page) == int((scores != 1).sum())
    choose(page, "f-outcome", "right")
    assert status(page) == int((scores == 1).sum())
    choose(page, "f-outcome", "")
    page.find_element("id", "f-disagree").click()
    other = store.scores(Cell("<b>gated</b>", "YaRN", "ruler", "vt", 8192)).scores
    assert status(page) == int((scores != other).sum())
    page.find_element("id", "f-disagree").click()
    page.find_element("id", "f-text").send_keys("It is 1007")
    assert status(page) == 1
    assert "baseline / YaRN / vt at 8K, sample 7" in page.find_element("id", "list").text


def test_an_evil_response_stays_text(page: Any) -> None:
    page.find_element("id", "f-text").send_keys("window.evil")
    assert status(page) > 0
    unfold(page)
    shown = page.find_element("id", "list").text
    assert EVIL in shown
    assert page.execute_script("return window.evil === undefined")
    assert page.find_elements("css selector", "img") == []
    assert page.get_log("browser") == []


def test_the_needle_is_marked(page: Any) -> None:
    choose(page, "f-task", "niah_single_1")
    page.find_element("id", "f-text").send_keys("It is 1007")
    unfold(page)
    marks = [m.text for m in page.find_elements("css selector", "#list mark")]
    assert marks
    assert set(marks) == {"1007"}
    assert "it is 1007. Next" in page.find_element("id", "list").text


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    first = page.find_element("css selector", "#list summary").text
    page.find_element("id", "next").send_keys(Keys.ENTER)
    assert page.find_element("css selector", "#list summary").text != first
    page.find_element("id", "previous").send_keys(Keys.SPACE)
    assert page.find_element("css selector", "#list summary").text == first
    page.find_element("css selector", "#list summary").send_keys(Keys.ENTER)
    assert page.find_element("css selector", "#list details").get_attribute("open") is not None
    labelled = page.execute_script("return [...document.querySelectorAll('select, input')].every(e => e.labels.length)")
    assert labelled, "every control has a name for a screen reader"


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_the_window(page: Any, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


LABELS = """
const boxes = [...document.querySelectorAll('figure svg')].map(svg => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll('text')].map(t => {
    const b = t.getBoundingClientRect();
    return [t.textContent, b.left, b.right, b.top, b.bottom, scale * parseFloat(getComputedStyle(t).fontSize)];
  });
});
return boxes;
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_charts_can_be_read(page: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    charts = page.execute_script(LABELS)
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert charts
    for labels in charts:
        assert min(label[5] for label in labels) >= 11, "pixels"
        for (a, *at, _), (b, *other, _) in itertools.combinations(labels, 2):
            apart = at[1] <= other[0] or other[1] <= at[0] or at[3] <= other[2] or other[3] <= at[2]
            assert apart, f"{a} and {b} overlap"


def test_charts_follow_a_dark_page(page: Any) -> None:
    look = "const t = document.querySelector('figure svg text'); return getComputedStyle(t).fill;"
    colours = []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        colours.append(sum(map(int, re.findall(r"\d+", page.execute_script(look))[:3])))
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours[0] < 3 * 80, "dark text on a light page"
    assert colours[1] > 3 * 175, "light text on a dark page"


def test_pages_of_a_written_run_also_open(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "plain", config(models=("only",), lengths=(4096,), tasks=("vt",)), n=3)
    browser.get(write_report(run).as_uri())
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: " samples, page " in b.find_element("id", "status").text)
    assert browser.get_log("browser") == []
