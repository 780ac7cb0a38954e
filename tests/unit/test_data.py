"""Data folders: what is found, what is missing, and that nothing is read wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.commands.data import data
from harness.data.catalog import DATASETS, MMLU_SUBJECTS
from harness.data.download import fetch_one
from harness.data.files import read_json, read_rows, sha256_of
from harness.data.folder import DataFolder
from harness.types import GatedevalError
from tests.support import ROOT


def test_the_shared_folder_works_as_it_stands(shared: Path) -> None:
    folder = DataFolder(shared / "data")
    states = {row["name"]: row["state"] for row in folder.check()}
    assert states == {name: "missing" if name == "english_words" else "here" for name in DATASETS}
    assert folder.missing(name for name in DATASETS if name != "english_words") == []
    (message,) = folder.missing(["english_words", "english_words", "essays"])
    assert "english_words.json" in message
    essays = folder.find("essays")
    assert essays.sha256 == "842477fbc94fee6a4372726af24fbdbbee779f5f80d99824d61c0479a09ef3de"
    assert essays.source == "--data"
    assert essays.manifest()["file"] == "ruler_PaulGrahamEssays.json.gz"


def test_rows(shared: Path) -> None:
    folder = DataFolder(shared / "data")
    assert len(MMLU_SUBJECTS) == len(set(MMLU_SUBJECTS)) == 57
    assert sum(len(folder.mmlu_rows("test", s)) for s in MMLU_SUBJECTS) == 14_042
    assert {len(folder.mmlu_rows("dev", s)) for s in MMLU_SUBJECTS} == {5}
    row = folder.mmlu_rows("test", "abstract_algebra")[0]
    assert set(row) == {"question", "choices", "answer"}
    assert len(row["choices"]) == 4
    assert row["answer"] in range(4)
    assert (len(folder.gsm8k_rows("test")), len(folder.gsm8k_rows("train"))) == (1319, 7473)
    with pytest.raises(GatedevalError, match="no subject 'cooking'"):
        folder.mmlu_rows("test", "cooking")


def test_environment_and_option(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEDEVAL_DATA", str(shared / "data"))
    assert DataFolder().root == shared / "data"
    assert DataFolder(tmp_path).root == tmp_path, "the option wins"
    with pytest.raises(GatedevalError, match="is not a folder"):
        DataFolder(tmp_path / "absent")
    with pytest.raises(GatedevalError, match=r"--squad .*no such file"):
        DataFolder(tmp_path, {"squad": tmp_path / "absent.json"})
    with pytest.raises(GatedevalError, match="no data set is called 'esays'"):
        DataFolder(tmp_path, {"esays": tmp_path})


def test_missing_says_what_to_bring_and_where(tmp_path: Path) -> None:
    with pytest.raises(GatedevalError) as caught:
        DataFolder(tmp_path).find("squad")
    assert "RULER qa_1" in str(caught.value)
    assert "dev-v2.0.json" in str(caught.value)
    assert "--squad" not in str(caught.value), "an option of `ruler generate` alone"
    assert "\n" not in str(caught.value)


def test_offline_without_a_folder(tmp_path: Path) -> None:
    """No folder, no network: one line that names the file and what the download said. (The address is unreachable.)

    In a process of its own: urllib reads the proxies once per process, for every later request too.
    """
    code = (
        "from harness.data.folder import DataFolder\n"
        "from harness.types import GatedevalError\n"
        "try:\n"
        "    DataFolder().find('squad')\n"
        "except GatedevalError as error:\n"
        "    print(error)\n"
        "print(len(DataFolder().missing(['squad', 'essays'])))\n"
    )
    unset = {"GATEDEVAL_DATA", "NO_PROXY", "no_proxy"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    env["GATEDEVAL_CACHE"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    message, missing = done.stdout.splitlines()
    assert re.search(r"bring SQuAD's dev-v2.0.json .*download failed", message)
    assert missing == "2"


def test_downloads_are_checked_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real download, of a file: address: kept if its hash is the known one, refused if not, found afterwards."""
    source = tmp_path / "dev-v2.0.json"
    source.write_text('{"data": []}')
    monkeypatch.setenv("GATEDEVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GATEDEVAL_DATA", raising=False)
    wrong = replace(DATASETS["squad"], url=source.as_uri(), sha256="0" * 64)
    monkeypatch.setitem(DATASETS, "squad", wrong)
    with pytest.raises(ValueError, match="expected 0000"):
        fetch_one("squad")
    monkeypatch.setitem(DATASETS, "squad", replace(wrong, sha256=sha256_of(source)))
    found = DataFolder().find("squad")
    assert (found.source, found.revision, found.sha256) == ("download", "dev-v2.0", sha256_of(source))
    assert [p.name for p in found.path.parent.iterdir()] == ["dev-v2.0.json"]
    assert list(DataFolder().fetch(["squad"])) == [("squad", found.path)]


def test_formats(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": "é\u2028x"}]
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    for name, raw in {
        "a.jsonl": text.encode(),
        "b.json": json.dumps(rows).encode(),
        "c.json": gzip.compress(text.encode()),
        "d.gz": b"\xef\xbb\xbf" + text.encode(),
    }.items():
        (tmp_path / name).write_bytes(raw)
        assert read_json(tmp_path / name) == rows
        assert [row for _, row in read_rows(tmp_path / name)] == rows
    for raw, message in [(b"{", "line 1: not JSON"), (b"{}\n{", "line 2: not JSON"), (b"\x1f\x8bxx", "cannot be read"),
                         (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer")]:  # fmt: skip
        (tmp_path / "bad").write_bytes(raw)
        with pytest.raises(GatedevalError, match=message):
            read_json(tmp_path / "bad")


def test_mmlu_layouts(tmp_path: Path) -> None:
    line = '"What, exactly?",1,"2 ""x""",3,4,C\n'
    for base in (tmp_path / "one" / "mmlu" / "data", tmp_path / "two" / "mmlu"):
        (base / "test").mkdir(parents=True)
        (base / "test" / "anatomy_test.csv").write_text(line)
    packed = tmp_path / "three" / "mmlu"
    packed.mkdir(parents=True)
    with tarfile.open(packed / "data.tar", "w") as tar:
        tar.add(tmp_path / "two" / "mmlu" / "test", "data/test")
    expected = [{"question": "What, exactly?", "choices": ["1", '2 "x"', "3", "4"], "answer": 2}]
    for name in ("one", "two", "three"):
        assert DataFolder(tmp_path / name).mmlu_rows("test", "anatomy") == expected, name
    (tmp_path / "two" / "mmlu" / "test" / "anatomy_test.csv").write_text(line + "q,1,2,3,4,2\n")
    with pytest.raises(GatedevalError, match="row 2: expected question,A,B,C,D,answer"):
        DataFolder(tmp_path / "two").mmlu_rows("test", "anatomy")


def test_hash_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("a")
    first = sha256_of(file)
    file.write_text("bb")
    assert sha256_of(file) != first
    assert sha256_of(tmp_path) != sha256_of(file)


def test_data_check_prints_the_state_of_every_data_set(shared: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(data, ["check", "--data", str(shared / "data")])
    assert done.exit_code == 0
    assert [line.split()[1] for line in done.stdout.splitlines()[::2]].count("here") == 7
    assert "english_words  missing" in done.stdout
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "dev-v2.0.json").write_text("{")
    broken = CliRunner().invoke(data, ["check", "--data", str(tmp_path)])
    assert broken.exit_code == 1
    assert "squad          broken" in broken.stdout


def test_a_zip_is_unpacked_to_the_folder_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """punkt_tab has 19 languages; only the English folder is kept, whole or not at all."""
    source = tmp_path / "punkt_tab.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for language in ("english", "french"):
            archive.writestr(f"punkt_tab/{language}/abbrev_types.txt", language)
    monkeypatch.setenv("GATEDEVAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GATEDEVAL_DATA", raising=False)
    changed = replace(DATASETS["punkt"], url=source.as_uri(), sha256=sha256_of(source))
    monkeypatch.setitem(DATASETS, "punkt", changed)
    found = DataFolder().find("punkt")
    assert found.path == tmp_path / "cache/data/nltk_data/tokenizers/punkt_tab/english"
    assert (found.source, found.revision) == ("download", "nltk/nltk_data@550b662")
    assert {p.name: p.read_text() for p in found.path.iterdir()} == {"abbrev_types.txt": "english"}
    assert [p.name for p in found.path.parent.iterdir()] == ["english"]
