"""The report in a real browser: links, keyboard, pairs, paper, phone, contrast."""

from __future__ import annotations

import base64
import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.report import write_report
from harness.store import Store
from harness.store.files import to_line
from harness.tables.comparisons import lines
from harness.types import Cell
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support.arm_runs import write_arms
from tests.support.sample_runs import answer, config, sample, table5_cells, write_run

EVIL = "<script>window.evil = 1</script></style></script><img src=x onerror='window.evil = 1'> & \"quoted\""
GATED = "<b>gated</b>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, two contexts, needles with depths and excerpts, one answer and one label that try to break out."""
    settings = config(models=("baseline", GATED), lengths=(4096, 8192, 16384))
    cells = table5_cells(settings, 12)
    path = tmp_path_factory.mktemp("report") / "run"
    with Store.open(path, {"config": settings, "caption": [EVIL], "seed": 1}, cells=cells) as store:
        for cell in cells:
            skill = 0.9 if cell.model == "baseline" else 0.5
            for i in range(12):
                prompt = {"head": "Some text. ", "tail": " What is it?", "needles": [f"... it is {1000 + i}. Next"]}
                extra = {"prompt_hash": f"{cell.task} {cell.length} {i}", "ruler": {"depth": i / 12}, "prompt": prompt}
                response = EVIL if i == 3 else "" if i == 4 else f"It is {1000 + i}."
                made = replace(answer(cell, i, skill), references=[str(1000 + i)], response=response, extra=extra)
                if cell.benchmark == "mmlu":
                    options = {"options": [" A", " B"], "logprobs": [-0.25, -1.5]}
                    made = replace(
                        made,
                        references=["1"],
                        response="0",
                        finish_reason="choose",
                        extra=extra | options | {"prompt": {"head": "Which?\nA. ape\nB. bee\nAnswer:", "tail": ""}},
                    )
                store.append(cell, made)
        store.finish()
    return path


@pytest.fixture(scope="module")
def browser(run: Path) -> Iterator[Any]:
    """Debian's chromium, headless. Where GATEDEVAL_REQUIRE_BROWSER is set, a machine without one fails the tests."""
    chrome, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chrome is None or driver is None:
        assert not os.environ.get("GATEDEVAL_REQUIRE_BROWSER"), "no chromium or chromedriver on this machine"
        pytest.skip("needs a browser: Debian's packages chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chrome
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def file(run: Path) -> str:
    return write_report(run).as_uri()


def opened(browser: Any, address: str) -> Any:
    """The browser with the page at `address`, once its samples are unpacked."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.documentElement.dataset.ready"))
    return browser


@pytest.fixture
def page(browser: Any, file: str) -> Any:
    return opened(browser, file)


def status(page: Any) -> int:
    return int(page.find_element("id", "status").text.split(" of ")[0].replace(",", ""))


def choose(page: Any, id: str, value: str) -> None:
    page.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1]; "
        "e.dispatchEvent(new Event('input', {bubbles: true}))",
        id,
        value,
    )


def wait(page: Any, condition: str) -> None:
    """Until the JavaScript expression is true: a browser tells of an opened fold a moment later."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 10).until(lambda b: b.execute_script(f"return Boolean({condition})"))


def unfold(page: Any) -> None:
    page.find_element("css selector", "#list summary").click()
    wait(page, "document.querySelector('#list .item .sample')")


def active(page: Any) -> str:
    """The key of the sample that has the focus."""
    return page.execute_script("return document.activeElement.closest('.item')?.dataset.key ?? ''")


def press(page: Any, key: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page).send_keys(key).perform()


def media(page: Any, **features: str) -> None:
    named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})


# ------------------------------------------------------------------------------------------------------- samples


def test_it_loads_without_complaint_and_loads_nothing(page: Any) -> None:
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert len(page.find_elements("css selector", "#list .item")) == 50


def test_filters_find_what_they_say(page: Any, run: Path) -> None:
    store = Store.read(run)
    choose(page, "f-model", "baseline")
    assert status(page) == 12 * sum(c.model == "baseline" for c in store.cells)
    choose(page, "f-task", "ruler/vt")
    choose(page, "f-length", "8192")
    assert status(page) == 24
    choose(page, "f-context", "YaRN")
    scores = store.scores(Cell("baseline", "YaRN", "ruler", "vt", 8192)).scores
    for outcome, right in {
        "right": scores == 1,
        "partly": (scores > 0) & (scores < 1),
        "wrong": scores == 0,
        "incomplete": scores < 1,
    }.items():
        choose(page, "f-outcome", outcome)
        assert status(page) == int(right.sum()), outcome
    choose(page, "f-outcome", "empty")
    assert status(page) == 1
    assert "sample 4" in page.find_element("id", "list").text
    choose(page, "f-outcome", "")
    page.find_element("id", "f-disagree").click()
    other = store.scores(Cell(GATED, "YaRN", "ruler", "vt", 8192)).scores
    assert status(page) == int((scores != other).sum())
    page.find_element("id", "f-disagree").click()
    page.find_element("id", "f-text").send_keys("It is 1007")
    assert status(page) == 1, "in the response and around the needle of the prompt"
    assert "sample 7" in page.find_element("id", "list").text
    page.find_element("id", "clear").click()
    choose(page, "f-outcome", "capped")
    capped = sum(int(store.scores(c).capped.sum()) for c in store.cells)
    assert status(page) == capped > 0


def test_rows_show_answer_and_reference(page: Any) -> None:
    choose(page, "f-task", "ruler/niah_single_1")
    row = page.find_element("css selector", "#list .item")
    assert row.find_element("css selector", ".answer").text == "It is 1000."
    assert row.find_element("css selector", ".reference").text == "1000"


def test_an_evil_response_stays_text(page: Any) -> None:
    page.find_element("id", "f-text").send_keys("window.evil")
    assert status(page) > 0
    unfold(page)
    shown = page.find_element("id", "list").text
    assert EVIL in shown
    assert page.execute_script("return window.evil === undefined")
    assert page.find_elements("css selector", "img") == []
    assert page.get_log("browser") == []


def test_what_matched_is_marked(page: Any) -> None:
    choose(page, "f-task", "ruler/niah_single_1")
    page.find_element("id", "f-text").send_keys("It is 1007")
    unfold(page)
    marks = page.execute_script("return [...document.querySelectorAll('.sample > * mark')].map(m => m.textContent)")
    assert marks
    assert set(marks) == {"1007"}
    assert "it is 1007." in page.find_element("css selector", ".sample .prompt + .gap + .what + .prompt").text


def test_a_choice_shows_its_options_with_log_probabilities(page: Any) -> None:
    choose(page, "f-task", "mmlu/anatomy")
    row = page.find_element("css selector", "#list .item")
    assert row.find_element("css selector", ".answer").text == "A. ape"
    assert row.find_element("css selector", ".reference").text == "B. bee"
    unfold(page)
    lines = [e.text for e in page.find_elements("css selector", "#list .sides:first-of-type .options tbody tr")[:2]]
    assert lines == ["A. ape \N{MINUS SIGN}0.250 chosen", "B. bee \N{MINUS SIGN}1.500 reference"]


def test_a_link_opens_the_same_view_and_survives_a_reload(page: Any, browser: Any) -> None:
    choose(page, "f-model", "baseline")
    choose(page, "f-task", "ruler/")
    page.find_elements("css selector", "button[data-turn='1']")[1].click()
    page.find_elements("css selector", "#list summary")[3].click()
    wait(page, "document.querySelector('#list .item .sample')")
    wait(page, "location.hash.includes('open=')")
    seen, address = page.find_element("id", "status").text, page.current_url
    key = page.find_elements("css selector", "#list .item")[3].get_attribute("data-key")
    assert "page 2 of" in seen
    again = opened(browser, address)
    assert again.find_element("id", "status").text == seen
    opened_keys = [e.get_attribute("data-key") for e in again.find_elements("css selector", "#list .item[open]")]
    assert opened_keys == [key] == [active(again)]
    assert again.execute_script("return document.getElementById('f-task').value") == "ruler/"
    link = again.find_element("css selector", "#list a.permalink").get_attribute("href")
    assert opened(browser, link).find_elements("css selector", "#list .item[open]")
    browser.refresh()
    wait(browser, "document.documentElement.dataset.ready && document.querySelector('#list .item[open]')")


def test_the_keyboard_alone_is_enough(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    first = page.find_element("css selector", "#list summary").text
    page.find_element("id", "next").send_keys(Keys.ENTER)
    assert page.find_element("css selector", "#list summary").text != first
    page.find_element("id", "previous").send_keys(Keys.SPACE)
    assert page.find_element("css selector", "#list summary").text == first
    keys = [e.get_attribute("data-key") for e in page.find_elements("css selector", "#list .item")]
    page.execute_script("document.activeElement.blur()")
    press(page, "j")
    assert active(page) == keys[0]
    press(page, "j")
    press(page, Keys.ARROW_DOWN)
    assert active(page) == keys[2]
    press(page, "k")
    assert active(page) == keys[1]
    press(page, Keys.ENTER)
    wait(page, "document.querySelector('#list .item[open] .sample')")
    press(page, Keys.ESCAPE)
    wait(page, "!document.querySelector('#list .item[open]')")
    assert active(page) == keys[1]
    for _ in range(49):
        press(page, "j")
    assert "page 2 of" in page.find_element("id", "status").text, "after the last sample of a page comes the next page"
    press(page, "k")
    assert active(page) == keys[49]
    page.find_element("id", "f-text").send_keys("jk")
    assert page.execute_script("return document.getElementById('f-text').value") == "jk", "letters in a field are text"
    labelled = page.execute_script(
        "return [...document.querySelectorAll('select, input')].every(e => e.labels.length || e.ariaLabel)"
    )
    assert labelled, "every control has a name for a screen reader"


def test_pages_can_be_jumped_to(page: Any) -> None:
    page.execute_script(
        "const e = document.querySelectorAll('input.page')[1]; e.value = 4; e.dispatchEvent(new Event('change'))"
    )
    assert "page 4 of" in page.find_element("id", "status").text
    assert page.find_element("css selector", "input.page").get_attribute("value") == "4"


# ------------------------------------------------------------------------------------------------------- pairs, links


def test_pairs_count_as_compare_does_and_lead_to_their_samples(page: Any, run: Path, browser: Any) -> None:
    store = Store.read(run)
    found, _ = lines(store, "baseline", GATED)
    (line,) = (x for x in found if (x.context, x.task, x.length) == ("YaRN", "vt", 16384))
    choose(page, "p-a", "model:baseline")
    captions = [e.text for e in page.find_elements("css selector", "#pair-tables caption")]
    assert captions == ["8k", "YaRN"]

    def links() -> list[Any]:
        table = page.find_elements("css selector", "#pair-tables table")[1]
        row = next(r for r in table.find_elements("css selector", "tbody tr") if r.text.startswith("vt"))
        return row.find_elements("css selector", "td")[2].find_elements("css selector", "small a")

    counts = [int(re.sub(r"\D", "", link.text)) for link in links()]
    assert counts[:2] == [line.comparison.gained, line.comparison.lost]
    assert sum(counts) == line.comparison.samples
    assert line.comparison.lost > 0
    for i, count in enumerate(counts):
        links()[i].click()
        wait(page, "location.hash.startsWith('#samples')")
        assert status(page) == count
        page.execute_script("history.back()")
        wait(page, "!location.hash.startsWith('#samples')")


def test_two_answers_stand_side_by_side(browser: Any, file: str) -> None:
    address = (
        f"{file}#samples?model=%3Cb%3Egated%3C%2Fb%3E&context=YaRN&task=ruler/vt&against=model:baseline&change=lost"
    )
    page = opened(browser, address)
    assert status(page) > 0
    head = [e.text for e in page.find_elements("css selector", "#head span")]
    assert head == ["change", "sample", "baseline", GATED, "reference"]
    unfold(page)
    who = [e.text for e in page.find_elements("css selector", "#list .item[open] .sample > .sides .what")]
    assert len(who) == 2
    assert "baseline, YaRN" in who[0]
    assert f"{GATED}, YaRN" in who[1]
    sides = page.find_elements("css selector", ".item[open] .sample > .sides > .side")
    assert sides[0].rect["x"] < sides[1].rect["x"]


@pytest.mark.parametrize("place", ["#tasks .heat td a", "#needles details[open] .heat td a", "#curves .data svg a"])
def test_fields_and_points_lead_to_their_samples(page: Any, place: str, run: Path) -> None:
    link = page.find_element("css selector", place)
    address = page.execute_script("return arguments[0].href.baseVal ?? arguments[0].getAttribute('href')", link)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    page.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))", link)
    wait(page, "location.hash.startsWith('#samples?')")
    assert address.startswith("#samples?")
    task = page.execute_script("return document.getElementById('f-task').value")
    expected = {"#tasks": 12, "#curves": 12 * 13}.get(place.split()[0])
    assert task.startswith("ruler/")
    assert status(page) == expected if expected else 0 < status(page) < 12
    top = page.execute_script("return document.getElementById('samples').getBoundingClientRect().top")
    assert -1 <= top < page.execute_script("return innerHeight"), "the samples are in view"


# ------------------------------------------------------------------------------------------------------- paper, phone


def test_paper_has_the_whole_table(page: Any, tmp_path: Path) -> None:
    if shutil.which("pdftotext") is None:
        assert not os.environ.get("GATEDEVAL_REQUIRE_BROWSER"), "no pdftotext on this machine"
        pytest.skip("needs pdftotext: Debian's package poppler-utils")
    printed = page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    (tmp_path / "r.pdf").write_bytes(base64.b64decode(printed["data"]))
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "r.pdf", "-"], capture_output=True, text=True, check=True
    ).stdout
    header = next(line for line in text.splitlines() if "questions" in line and "strict" in line)
    assert header.split()[-2:] == ["strict", "flexible"], "the last column is on the paper"
    cells = page.execute_script(
        "return [...document.querySelectorAll('.main tbody tr')].map(r => r.lastElementChild.firstChild.textContent)"
    )
    for number in cells:
        if re.fullmatch(r"[\d.]+", number):
            assert number in text
    for task in ("niah_single_1", "niah_multivalue"):
        assert re.search(rf"^{task}$", text, flags=re.MULTILINE), "folded maps are printed"
    assert "How it was measured" in text
    assert "Of " in text, "the verdict"


def test_no_table_is_cut_on_paper(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 703, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )  # 186 mm, the width of the paper between its margins
    sizes = page.execute_script(
        "return [...document.querySelectorAll('table, figure svg')].filter(e => e.getClientRects().length)"
        ".map(e => [e.className.baseVal ?? e.className, e.getBoundingClientRect().right])"
    )
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert sizes
    assert [size for size in sizes if size[1] > 704] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_the_window(page: Any, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    if width == 390:
        wide = page.execute_script(
            "const s = document.querySelector('#comparison .scroll');"
            "return [s.scrollWidth > s.clientWidth, getComputedStyle(s).backgroundImage.includes('gradient'),"
            "getComputedStyle(s.querySelector('th[scope=row]')).position]"
        )
        assert wide == [True, True, "sticky"], "a table that scrolls shows a shadow, and its names stay"
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


LABELS = """
const boxes = [...document.querySelectorAll('figure .data svg')].map(svg => {
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


def test_charts_show_the_whole_scale_on_demand(page: Any) -> None:
    shown = (
        "return [...document.querySelectorAll('#curves figure > div')].map(e => getComputedStyle(e).display !== 'none')"
    )
    assert page.execute_script(shown) == [True, False] * 2
    page.find_element("id", "whole").click()
    assert page.execute_script(shown) == [False, True] * 2


# ------------------------------------------------------------------------------------------------------- contrast

CONTRAST = """
const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
const ink = canvas.getContext('2d', {willReadFrequently: true});
const rgb = (colour, below = [255, 255, 255]) => {
  ink.globalCompositeOperation = 'copy'; ink.fillStyle = `rgb(${below})`; ink.fillRect(0, 0, 1, 1);
  ink.globalCompositeOperation = 'source-over'; ink.fillStyle = colour; ink.fillRect(0, 0, 1, 1);
  return [...ink.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const luminance = (c) => c.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (a, b) => {
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => p - q);
  return (y + 0.05) / (x + 0.05);
};
const behind = (element) => {
  if (!element) return rgb(getComputedStyle(document.body).backgroundColor);
  const colour = getComputedStyle(element).backgroundColor;
  return rgb(colour, colour.startsWith('rgba') || colour.includes('/') ? behind(element.parentElement) : undefined);
};
const holder = (element) => element instanceof SVGElement ? element.closest('svg').parentElement : element;
const bad = [];
let texts = 0, lines = 0;
for (const element of document.querySelectorAll('body *')) {
  if (element.closest('script, style, noscript') || !element.getClientRects().length) continue;
  if (element.matches(':disabled')) continue;
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const style = getComputedStyle(element);
  if (own && !(element instanceof SVGElement && element.tagName !== 'text')) {
    texts += 1;
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const value = contrast(rgb(colour), behind(holder(element)));
    if (value < 4.5) bad.push([element.tagName, element.textContent.slice(0, 30), value]);
  }
  const drawn = '#curves svg g[id*=curve] path, #curves svg g[id*=LineCollection] path';
  const line = element.matches(drawn) && style.stroke !== 'none';
  const control = element.matches('select, input, button');
  const mark = element.matches('.dot');
  if (line || control || mark) {
    lines += 1;
    const colour = line ? style.stroke : style.borderTopColor;
    const value = contrast(rgb(colour), behind(line ? holder(element) : element.parentElement));
    if (value < 3) bad.push([element.tagName, element.id, value]);
  }
}
return [texts, lines, bad];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_to_read(page: Any, scheme: str) -> None:
    media(page, prefers_color_scheme=scheme)
    page.execute_script("document.querySelectorAll('main details').forEach(d => d.open = true)")
    choose(page, "f-against", f"model:{GATED}")
    texts, drawn, bad = page.execute_script(CONTRAST)
    dark = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    media(page, prefers_color_scheme="light")
    assert (dark == "rgb(20, 23, 27)") == (scheme == "dark")
    assert texts > 500
    assert drawn > 20
    assert bad == []


def test_charts_follow_a_dark_page(page: Any) -> None:
    look = "const t = document.querySelector('figure svg text'); return getComputedStyle(t).fill;"
    colours = []
    for scheme in ("light", "dark"):
        media(page, prefers_color_scheme=scheme)
        colours.append(sum(map(int, re.findall(r"\d+", page.execute_script(look))[:3])))
    media(page, prefers_color_scheme="light")
    assert colours[0] < 3 * 80, "dark text on a light page"
    assert colours[1] > 3 * 175, "light text on a dark page"


# ------------------------------------------------------------------------------------------------------- other runs


def test_pages_of_a_written_run_also_open(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "plain", config(models=("only",), lengths=(4096,), tasks=("vt",)), n=3)
    page = opened(browser, write_report(run).as_uri())
    assert page.get_log("browser") == []


def test_a_run_without_a_pair_and_one_without_samples_open(browser: Any, tmp_path: Path) -> None:
    cell = Cell("m", "c", "ruler", "vt", 4096)
    with Store.open(tmp_path / "one", {}, cells={cell: 1}) as store:
        store.append(cell, sample(0, {"score": 0.5}))
        store.finish()
    settings = config(lengths=(4096,))
    Store.open(tmp_path / "none", {"config": settings}, cells=table5_cells(settings)).finish()
    for name, samples in (("one", 1), ("none", 0)):
        page = opened(browser, write_report(tmp_path / name).as_uri())
        assert status(page) == samples
        assert page.get_log("browser") == []


@pytest.mark.slow
def test_the_full_grid_stays_under_five_megabytes_and_opens_in_two_seconds(browser: Any, tmp_path: Path) -> None:
    """13 tasks, 6 lengths, 500 samples, 4 models: 156,000 samples with texts that do not compress."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(30_000)]
    lengths = [4096 << i for i in range(6)]
    settings = config(models=("a", "b", "c", "d"), lengths=lengths)
    settings["contexts"] = [{"label": "YaRN", "max_length": 131072}]
    settings["benchmarks"] = settings["benchmarks"][:1]
    cells: dict[Cell, int | None] = {
        Cell(m["label"], "YaRN", "ruler", t, n): 500 for m in settings["models"] for n in lengths for t in RULER_TASKS
    }
    with Store.open(tmp_path / "r", {"config": settings}, cells=cells) as store:
        for cell in cells:
            made = (
                replace(
                    answer(cell, i, 0.7),
                    response=" ".join(rng.choices(words, k=60)),
                    extra={
                        "prompt_hash": f"{cell.task} {cell.length} {i}",
                        "prompt": {"head": " ".join(rng.choices(words, k=37)), "tail": "What?", "needles": []},
                    },
                )
                for i in range(500)
            )
            store.samples_path(cell).write_bytes(b"".join(to_line(asdict(sample)) for sample in made))
        store.finish()
    file = write_report(tmp_path / "r")
    assert file.stat().st_size < 5_000_000
    page = opened(browser, file.as_uri())
    assert page.execute_script("return performance.getEntriesByName('ready')[0].startTime") < 2000
    assert page.get_log("browser") == []


# ------------------------------------------------------------------------------------------------------- arms


@pytest.mark.slow
def test_the_row_of_an_arm_opens_to_its_checkpoints(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, write_report(write_arms(tmp_path / "run")).as_uri())
    arms = page.find_elements("css selector", "table.main tbody.arm")
    assert len(arms) == 4, "two arms under two settings"
    for arm in arms:
        row, *checkpoints = arm.find_elements("css selector", "tr")
        assert row.is_displayed()
        assert [c.is_displayed() for c in checkpoints] == [False] * 3
    first, box = arms[0], arms[0].find_element("css selector", "input")
    assert first.text.split("\n")[:2] == ["base", "3 checkpoints"]
    box.send_keys(" ")  # by keyboard
    shown = [row.text.split()[0] for row in first.find_elements("css selector", "tr") if row.is_displayed()]
    assert shown == ["base", "base-s1", "base-s2", "base-s3"]
    assert not any(row.is_displayed() for row in arms[1].find_elements("css selector", "tr.checkpoint"))
    box.click()
    assert not any(row.is_displayed() for row in first.find_elements("css selector", "tr.checkpoint"))
    assert page.get_log("browser") == []
