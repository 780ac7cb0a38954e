"""The example in each family's docstring is what the generator makes."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from harness.models.tokenizer import Tokenizer
from tasks.ruler import generate


@pytest.mark.parametrize(
    ("module", "task", "length"),
    [
        ("needle", "niah_multivalue", 2048),
        ("variable_tracking", "vt", 2048),
        ("common_words", "cwe", 4096),
        ("frequent_words", "fwe", 2048),
        ("qa", "qa_1", 2048),
    ],
)
def test_the_example_is_a_real_prompt(shared: Path, bpe4k: Tokenizer, module: str, task: str, length: int) -> None:
    """Every part between two [...] stands in the prompt, in this order, from its start to its end."""
    doc = import_module(f"tasks.ruler.{module}").__doc__ or ""
    assert f"at {length} tokens" in doc
    example = " ".join(line for line in doc.split("\n") if line.startswith("    "))
    (sample,) = generate(task, tokenizer=bpe4k, length=length, samples=1, data=shared / "data")
    prompt, at = " ".join(sample.prompt.split()), 0
    parts = [" ".join(part.split()) for part in example.split("[...]")]
    assert prompt.startswith(parts[0])
    assert prompt.endswith(parts[-1])
    for part in parts:
        assert part in prompt[at:], part
        at = prompt.index(part, at) + len(part)
    answers = re.findall(r"\w+", doc.rsplit("Answers:", 1)[1].split("(")[0])
    assert set(answers) == set(sample.outputs)
