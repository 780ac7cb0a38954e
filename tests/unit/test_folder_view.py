"""`gatedeval view`: the page over a folder of runs, its links, and arms of two runs compared."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from harness.report import report
from harness.report.folder import compare_arms, runs_of
from harness.report.view import ADDRESS, server
from harness.store import Store
from harness.tables import table5
from harness.tables.comparisons import lines
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support.sample_runs import config, write_run
from tests.support.signals import receive_signals


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with the same samples, a damaged one, and one with a name that tries to break out."""
    folder = tmp_path_factory.mktemp("results")
    write_run(folder / "monday", config(lengths=(4096, 8192)), n=12, skill=lambda c: 0.9 if c.model == "gated" else 0.4)
    write_run(folder / "<b>tuesday", config(models=("gated",), lengths=(4096, 8192)), n=12, skill=lambda c: 0.8)
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """The address of a real server over the folder."""
    with server(folder) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://{ADDRESS}:{serving.server_port}"
        serving.shutdown()


def get(address: str, **headers: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine's own server: no proxy
    with direct.open(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        return answer.read().decode()


def test_the_list_has_every_run_with_the_scores_of_its_table(site: str, folder: Path) -> None:
    page = get(site + "/")
    assert "<b>tuesday" not in page
    assert "&lt;b&gt;tuesday" in page
    assert re.search(r"broken</b></a>\s*<span class=\"soft\">damaged", page)
    assert "complete, " in page
    section = next(part for part in page.split("<tbody") if ">monday<" in part)
    for row in table5(Store.read(folder / "monday")).rows:
        line = next(
            part for part in section.split("<tr>") if f'>{row[0].text}</a> <span class="soft">{row[1].text}<' in part
        )
        shown = re.findall(r"<td>(.*?)</td>", line)
        table = table5(Store.read(folder / "monday"))
        wanted = [
            entry.number
            for entry, column in zip(row[2:], table.columns[2:], strict=True)
            if "by subject" not in column.name and "flexible" not in column.name
        ]
        assert shown == wanted


def test_a_name_opens_the_report_of_its_run(site: str, folder: Path) -> None:
    page = get(site + "/")
    address = unescape(re.findall(r'<a href="(/report/[^"#]*)"><b>', page)[0])
    assert "%3Cb%3Etuesday" in page
    assert get(site + "/report/monday") == report(Store.read(folder / "monday"))
    assert "<title>" in get(site + address)


def test_arms_of_two_runs_are_paired_by_sample(site: str, folder: Path) -> None:
    runs = {run.name: run for run in runs_of(folder)}
    arm = {(a.model, a.context): a for a in runs["monday"].arms}
    found = {
        p.title: p.comparison for p in compare_arms(list(runs.values()), arm["baseline", "YaRN"], arm["gated", "YaRN"])
    }
    own, _ = lines(Store.read(folder / "monday"), "baseline", "gated", "YaRN")
    (line,) = (x for x in own if x.task == "average" and x.length == 8192)
    comparison = found["RULER 8K"]
    assert comparison is not None
    wanted = line.comparison
    assert (comparison.difference, comparison.low, comparison.gained, comparison.lost) == (
        wanted.difference,
        wanted.low,
        wanted.gained,
        wanted.lost,
    )
    other = runs["<b>tuesday"].arms[0]
    across = compare_arms(list(runs.values()), arm["gated", other.context], other)
    assert any(p.comparison is not None and p.comparison.samples == 12 * 13 for p in across)
    query = urlencode({"arm": [arm["gated", other.context].key, other.key]}, doseq=True)
    page = get(f"{site}/compare?{query}")
    assert "&lt;b&gt;tuesday: gated" in page
    assert "RULER 4K" in page


def test_averages_over_other_tasks_are_other_columns(tmp_path: Path) -> None:
    for name, tasks in (("a", ("vt",)), ("b", ("cwe",)), ("c", ("vt", "cwe"))):
        write_run(tmp_path / name, config(lengths=(4096,), tasks=tasks), n=3)
    runs = runs_of(tmp_path)
    arm = {run.name: run.arms[0] for run in runs}
    assert [c.name for c in arm["a"].scores][:1] == ["RULER 1/13 4K"]
    assert [c.name for c in arm["c"].scores][:1] == ["RULER 2/13 4K"]
    found = {p.title: p for p in compare_arms(runs, arm["a"], arm["b"])}
    assert found["RULER 1/13 4K"].comparison is None
    assert "no task in common" in found["RULER 1/13 4K"].reason
    assert not [p for p in compare_arms(runs, arm["a"], arm["c"]) if p.title.startswith("RULER")]


@pytest.mark.parametrize("path", ["/report/../../etc/passwd", "/report/%2e%2e%2fmonday", "/nothing", "/compare?arm=x"])
def test_there_is_nothing_else_to_get(site: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(site + path)
    assert refused.value.code == 404


def test_another_sites_name_for_this_machine_is_refused(site: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(site + "/", Host="example.org")
    assert refused.value.code == 403


def test_a_folder_may_be_one_run_or_empty_but_must_exist(folder: Path, tmp_path: Path) -> None:
    assert [run.name for run in runs_of(folder / "monday")] == ["monday"]
    assert runs_of(tmp_path) == []
    with pytest.raises(GatedevalError, match="no folder"):
        server(tmp_path / "nothing")
    with server(tmp_path) as taken, pytest.raises(GatedevalError, match="cannot listen on"):
        server(tmp_path, taken.server_port)


@pytest.mark.extended
def test_ctrl_c_ends_the_command(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "cli.py"), "view", str(folder), "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=receive_signals
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert "monday" in get(address)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
