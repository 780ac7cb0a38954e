"""Byte identity with the lines that upstream's own generators wrote."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.ruler import generate, load_tokenizer
from tests.conftest import shared_folder
from tests.support import ROOT

ORACLES = None if shared_folder() is None else shared_folder() / "oracles" / "ruler"  # type: ignore[operator]
FILES: dict[str, dict[str, object]] = json.loads((ORACLES / "manifest.json").read_text()) if ORACLES else {}
if ORACLES is None and os.environ.get("GATEDEVAL_REQUIRE_SHARED") == "1":
    pytest.fail("GATEDEVAL_REQUIRE_SHARED=1, but there is no oracle folder: set GATEDEVAL_SHARED")
if ORACLES is None:
    pytest.skip("no oracle folder: set GATEDEVAL_SHARED", allow_module_level=True)


def test_all_golden_files_are_covered() -> None:
    assert len(FILES) == 32
    assert sum(int(str(f["rows"])) for f in FILES.values()) == 128


@pytest.mark.parametrize("counting", ["auto", "whole"])
@pytest.mark.parametrize("name", FILES)
def test_same_bytes(shared: Path, name: str, counting: str) -> None:
    folder, length, file = name.split("/")
    rows = int(str(FILES[name]["rows"]))
    tokenizer = load_tokenizer(shared / "oracles" / "ruler" / folder)
    samples = generate(
        file.split(".")[0],
        tokenizer=tokenizer,
        length=int(length),
        samples=rows,
        data=shared / "data",
        counting=counting,  # type: ignore[arg-type]
    )
    text = "".join(f"{s.to_json()}\n" for s in samples)
    assert text == gzip.decompress((shared / "oracles" / "ruler" / name).read_bytes()).decode()
    assert hashlib.sha256(text.encode()).hexdigest() == FILES[name]["sha256"]
    assert not tokenizer.notes, "these tokenizers keep the rule: no fallback"


def test_command_writes_the_same_bytes(shared: Path) -> None:
    """Through a process of its own: stdout carries the lines and nothing else."""
    tokenizer = shared / "oracles" / "ruler" / "tokenizer_bpe4k_bos"
    done = subprocess.run(
        [sys.executable, "-m", "tasks.ruler", "ruler", "generate", "cwe", "--tokenizer", str(tokenizer),
         "--length", "4096", "--samples", "2", "--seed", "42", "--data", str(shared / "data")],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == gzip.decompress((tokenizer / "4096" / "cwe.jsonl.gz").read_bytes())


@pytest.mark.parametrize("task", ["niah_multivalue", "vt", "cwe", "fwe", "qa_1"])
def test_first_rows_and_resume(shared: Path, bpe4k: object, task: str) -> None:
    """Rows do not depend on how many are asked for; `start` gives the same rows; everything is lazy."""

    def lines(samples: int, start: int = 0) -> list[str]:
        made = generate(task, tokenizer=bpe4k, length=4096, samples=samples, start=start, data=shared / "data")
        return [s.to_json() for s in made]

    six = lines(6)
    assert lines(3) == six[:3]
    assert lines(6, 4) == six[4:]
    assert lines(0) == []
    assert lines(2, 2) == []


def test_other_seed_other_samples(shared: Path, bpe4k: object) -> None:
    def first(seed: int) -> str:
        made = generate("niah_single_2", tokenizer=bpe4k, length=2048, samples=1, seed=seed, data=shared / "data")
        return next(made).to_json()

    assert first(42) != first(43)
    assert first(43) == first(43)
