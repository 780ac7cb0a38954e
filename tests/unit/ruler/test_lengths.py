"""A length that a plan accepts is enough for every row, and a stated minimum is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import models
from tokenizers.pre_tokenizers import ByteLevel

from harness.data.folder import DataFolder
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError
from tasks.ruler import TASKS, Request, generate
from tasks.ruler.lengths import check

SAMPLES = 40


def request(task: str, tokenizer: Tokenizer, shared: Path, **options: Any) -> Request:
    return Request(task=task, tokenizer=tokenizer, samples=SAMPLES, data=DataFolder(shared / "data"), **options)


def rows_made(wanted: Request) -> int:
    """Rows before the first error."""
    rows = 0
    try:
        for _ in generate(wanted):
            rows += 1
    except GatedevalError:
        pass
    return rows


def refusal(wanted: Request) -> str:
    with pytest.raises(GatedevalError) as caught:
        check(wanted)
    return str(caught.value)


@pytest.mark.parametrize(("task", "length"), [("qa_1", 1187), pytest.param("qa_2", 3000, marks=pytest.mark.extended)])
def test_a_length_that_is_enough_for_the_first_row_alone_is_refused(
    shared: Path, made: Callable[[str], Tokenizer], task: str, length: int
) -> None:
    wanted = request(task, made("qwen"), shared, length=length)
    assert 0 < rows_made(wanted) < SAMPLES
    assert "the length must be at least" in refusal(wanted)


@pytest.mark.parametrize(
    "task",
    ["qa_1", "fwe", *(pytest.param(task, marks=pytest.mark.extended) for task in TASKS if task not in ("qa_1", "fwe"))],
)
def test_a_stated_minimum_is_enough_for_every_row(shared: Path, bpe4k: Tokenizer, task: str) -> None:
    wanted = request(task, bpe4k, shared, length=200)
    enough = int(re.findall(r"at least (\d+)", refusal(wanted))[0])
    assert rows_made(replace(wanted, length=enough)) == SAMPLES
    check(replace(wanted, length=enough))
    assert "at least" in refusal(replace(wanted, length=enough - enough // 8)), "it is not far above the true minimum"


@pytest.mark.parametrize(
    ("task", "length"),
    [("niah_single_3", 1180), ("qa_1", 1532), pytest.param("niah_multivalue", 1200, marks=pytest.mark.extended)],
)
def test_every_option_that_a_refusal_names_helps(shared: Path, bpe4k: Tokenizer, task: str, length: int) -> None:
    wanted = request(task, bpe4k, shared, length=length)
    named = re.findall(r"`(\w+): (\w+)`", refusal(wanted))
    assert ("profile", "fair") in named
    for option, value in named:
        changed = replace(wanted, **{option: int(value) if value.isdigit() else value})  # type: ignore[arg-type]
        assert rows_made(changed) == SAMPLES, option


@pytest.mark.extended
@pytest.mark.parametrize("profile", ["nvidia", "fair"])
@pytest.mark.parametrize("length", [512, 1100, 2048])
def test_what_is_accepted_is_made_to_the_last_row(shared: Path, bpe4k: Tokenizer, profile: str, length: int) -> None:
    """All 13 tasks: `check` says in advance what making the rows says."""
    for task in TASKS:
        wanted = request(task, bpe4k, shared, length=length, profile=profile)
        try:
            check(wanted)
        except GatedevalError:
            assert rows_made(wanted) < SAMPLES, task
        else:
            assert rows_made(wanted) == SAMPLES, task


def test_a_tokenizer_of_letters_cannot_have_the_example_of_vt(shared: Path) -> None:
    """Its 500 tokens are upstream's, so that no length helps."""
    letters = Raw(models.BPE(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    letters.pre_tokenizer = ByteLevel(add_prefix_space=False)
    said = refusal(request("vt", Tokenizer(letters), shared, length=16384))
    assert "evaluate this model without vt" in said


def test_reserved_tokens_come_off_the_length_but_do_not_change_the_task(shared: Path, bpe4k_bos: Tokenizer) -> None:
    """At 4096 common words occur 30 times, below it 6 times: one BOS must not make it the smaller task."""
    wanted = request("cwe", bpe4k_bos, shared, length=4096)
    whole, less = (
        next(iter(generate(replace(wanted, samples=1, reserved=reserved)))) for reserved in (None, 1)
    )  # fmt: skip
    assert less.input.count(f" {less.outputs[0]} ") == whole.input.count(f" {whole.outputs[0]} ") == 30
    for task in ("niah_single_2", "fwe", "niah_multikey_3"):
        for sample in generate(replace(wanted, task=task, reserved=1)):
            assert sample.validity.overshoot == 0
            assert sample.validity.prompt_tokens == len(bpe4k_bos.encode(sample.prompt))
