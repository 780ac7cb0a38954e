"""The tree of options, without an engine: tokenizers that merge or split " A", common beginnings, normalised scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers

from harness.benchmarks.lm_tasks import LmEvalTask
from harness.config import ContextSetting
from harness.engine.encoding import Encoder
from harness.engine.option_tree import Tree
from harness.engine.requests import Choice, Question, SampleRequest
from harness.models.checkpoint import inspect
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError

OPTIONS = tuple(("Q. Answer:", f" {letter}") for letter in "ABCD")
NATIVE = ContextSetting(label="native")


@pytest.fixture(scope="module")
def tiny(tiny: Path) -> Path:
    """The tiny baseline."""
    return tiny / "baseline"


def encoder(folder: Path, tiny: Path, *merges: tuple[str, str]) -> Encoder:
    """Over a byte-level BPE with exactly these merges, which may cross word boundaries. \u0120 is the space."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {t: i for i, t in enumerate([*letters, *dict.fromkeys(a + b for a, b in merges), "<|end|>"])}
    raw = Raw(models.BPE(vocab=vocabulary, merges=list(merges)))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    folder.mkdir()
    raw.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return Encoder(Tokenizer(folder), inspect(tiny), NATIVE, 512, "float32")


def question(made: Encoder) -> tuple[Question, list[list[str]]]:
    """The request for OPTIONS, and each continuation's tokens as text."""
    request = made.encode(SampleRequest(id="0", label="q", options=OPTIONS))
    assert isinstance(request, Question)
    return request, [[made.tokenizer.decode([t]) for t in tokens] for _, tokens in request.options]


def test_single_tokens_are_one_request(tiny: Path, tmp_path: Path) -> None:
    made, pieces = question(encoder(tmp_path / "t", tiny, *(("\u0120", letter) for letter in "ABCD")))
    assert pieces == [[" A"], [" B"], [" C"], [" D"]]
    [node] = Tree(made).nodes
    assert len(node.children) == 4


def test_a_tokenizer_that_splits_the_option(tiny: Path, tmp_path: Path) -> None:
    """Every option is a space and a letter: one request asks for the space, another for all letters."""
    made, pieces = question(encoder(tmp_path / "t", tiny))
    assert pieces == [[" ", "A"], [" ", "B"], [" ", "C"], [" ", "D"]]
    first, second = Tree(made).nodes
    assert (len(first.children), len(second.children)) == (1, 4)
    assert second.ids == first.ids + tuple(first.children)


def test_a_tokenizer_that_splits_some_options(tiny: Path, tmp_path: Path) -> None:
    made, pieces = question(encoder(tmp_path / "t", tiny, ("\u0120", "A"), ("\u0120", "C")))
    assert pieces == [[" A"], [" ", "B"], [" C"], [" ", "D"]]
    first, second = Tree(made).nodes
    assert (len(first.children), len(second.children)) == (3, 2)


def test_a_tokenizer_that_merges_across_the_boundary(tiny: Path, tmp_path: Path) -> None:
    """`: ` is one token in the whole text: the letter is what comes after as many tokens as the context has, as in
    lm-eval, and the context is sent as it is alone."""
    made, pieces = question(encoder(tmp_path / "t", tiny, (":", "\u0120")))
    assert pieces == [["A"], ["B"], ["C"], ["D"]]
    assert len(Tree(made).nodes) == 1


def test_an_option_without_a_token_of_its_own_is_refused(tiny: Path, tmp_path: Path) -> None:
    """`: A` is one token: nothing is left of the option, and the log-likelihood of nothing would beat every other."""
    swallowing = encoder(tmp_path / "t", tiny, ("\u0120", "A"), (":", "\u0120A"))
    with pytest.raises(GatedevalError, match="' A' has no token of its own"):
        swallowing.encode(SampleRequest(id="0", label="q", options=OPTIONS))


@pytest.mark.parametrize(
    ("options", "requests", "children"),
    [
        ([(5,), (6,), (7,)], 1, 3),
        ([(5,), (5, 9), (5, 9, 11)], 3, 3),  # each the beginning of the next
        ([(5, 9, 1), (5, 9, 2), (5, 8)], 3, 5),  # alike at first
        ([(5,), (5,)], 1, 1),  # the same twice
        ([(i,) for i in range(300)], 3, 300),  # more than vLLM takes in one request
    ],
)  # fmt: skip
def test_requests_for_options(options: list[tuple[int, ...]], requests: int, children: int) -> None:
    tree = Tree(Question("q", tuple(((1, 2, 3), option) for option in options)))
    assert len(tree.nodes) == requests
    assert sum(len(node.children) for node in tree.nodes) == children


def test_contexts_of_their_own_are_requests_of_their_own() -> None:
    assert len(Tree(Question("q", (((1, 2), (7,)), ((1, 3), (7,))))).nodes) == 2


def test_accuracy_normalised_by_characters_and_by_bytes() -> None:
    """Three ways to prefer an option, three different options: likeliest, likeliest per character, per byte."""
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask

    choices = ["four", "eight ch", "\u00e9" * 6]  # 4, 8, 6 characters; 4, 8, 12 bytes
    logprobs = (-4.0, -6.0, -5.4)  # per character -1, -0.75, -0.9; per byte -1, -0.75, -0.45
    for gold, right in enumerate(("acc", "acc_norm", "acc_bytes")):
        rows = [{"q": "Which?", "options": choices, "gold": gold}]
        config = {
            "task": "made", "custom_dataset": lambda rows=rows, **_: DatasetDict({"test": Dataset.from_list(rows)}),
            "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_target": "gold",
            "doc_to_choice": "options",
            "metric_list": [{"metric": m, "aggregation": "mean"} for m in ("acc", "acc_norm", "acc_bytes")],
        }  # fmt: skip
        task = LmEvalTask("made", ConfigurableTask(config=config))
        [(number, doc)] = task.documents(None)
        _, instances = task.request(number, doc, None)
        scores = task.score(doc, instances, Choice("q", logprobs, (False,) * 3, 0.0), "")
        assert scores == {m: float(m == right) for m in ("acc", "acc_norm", "acc_bytes")}
