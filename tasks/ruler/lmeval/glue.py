"""RULER for lm-eval's own command line.

`lm_eval --include_path tasks --tasks gatedeval_ruler --metadata '{"max_seq_lengths":[4096]}'`

Keys of the metadata: `max_seq_lengths` (tokens of prompt and answer; [4096]), `samples` (500), `seed` (42), `profile`
(nvidia), `data` (GATEDEVAL_DATA), `tokenizer` (that of the model in model_args). Documents have upstream's fields.
`--limit 10` takes ten samples of every length, and only these are made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask

try:
    from tasks.ruler import TASKS, generate, load_tokenizer, score
except ImportError:  # run from a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from tasks.ruler import TASKS, generate, load_tokenizer, score
from harness.types import GatedevalError

LENGTHS = tuple(512 << n for n in range(12))
"""lm-eval needs the names of its metrics beforehand, and every length is a metric of its own."""
FIELDS = (
    "task", "row", "index", "input", "outputs", "length", "max_length", "gen_prefix", "prompt_tokens", "depth",
)  # fmt: skip


class Documents:
    """The documents of a task: the first sample of every length, then the second of every length, and so on.

    A document is made when it is first asked for, and kept: lm-eval keeps those that it sends anyway. `len` is the
    number of samples per length, which is what lm-eval's `--limit` and its count of samples are about here.
    """

    features = dict.fromkeys(FIELDS)  # lm-eval looks only at the names

    def __init__(self, task: str, lengths: list[int], tokenizer: str, options: dict[str, Any]) -> None:
        self.lengths, self._samples = lengths, options["samples"]
        self._made: list[dict[str, Any]] = []
        loaded = _tokenizer(tokenizer)
        by_length = [_rows(task, length, loaded, options) for length in lengths]
        self._rest = (row for same_number in zip(*by_length, strict=False) for row in same_number)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> dict[str, Any]:
        while len(self._made) <= number:
            try:
                self._made.append(next(self._rest))
            except StopIteration:
                raise IndexError(number) from None
        return self._made[number]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            try:
                yield self[number]
            except IndexError:
                return
            number += 1


class RulerTask(ConfigurableTask):
    """lm-eval's task over `Documents`: a limit counts the samples of each length, and there are no worked examples."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={key: value for key, value in config.items() if key != "class"})
        self._limit_is_whole = False  # whether `doc_iterator` gets a limit over all lengths

    def fewshot_docs(self) -> None:
        """No examples. lm-eval would otherwise make every document to draw examples from."""

    def doc_iterator(
        self, *, rank: int = 0, limit: int | None = None, world_size: int = 1, samples: list[int] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(number, document). `samples`: numbers in the order of `Documents`."""
        if not self._limit_is_whole:
            limit = self._whole(limit)
        return super().doc_iterator(rank=rank, limit=limit, world_size=world_size, samples=samples)

    def build_all_requests(self, *, limit: int | None = None, **options: Any) -> None:
        """lm-eval's. It iterates over the documents and cuts what it made at the limit: here over all lengths."""
        self._limit_is_whole = True
        try:
            super().build_all_requests(limit=self._whole(limit), **options)
        finally:
            self._limit_is_whole = False

    def _whole(self, limit: int | None) -> int | None:
        """A limit per length as one over all lengths."""
        return int(limit) * len(self.eval_docs.lengths) if limit else None


@functools.lru_cache(maxsize=2)
def _tokenizer(name: str) -> Any:
    return load_tokenizer(name)


def _rows(task: str, length: int, tokenizer: Any, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of a task at one length."""
    for sample in generate(task, tokenizer=tokenizer, length=length, **options):
        yield {
            "task": task,
            "row": sample.row,
            "index": sample.index,
            "input": sample.input,
            "outputs": sample.outputs,
            "length": sample.length,
            "max_length": length,
            # lm-eval puts one space between text and prefix where neither has one, and none in a chat's turn.
            "gen_prefix": sample.answer_prefix.removeprefix(" "),
            "prompt_tokens": sample.validity.prompt_tokens,
            "depth": sample.validity.depth,
        }


def _dataset(task: str, **metadata: Any) -> dict[str, Documents]:
    names = (metadata.get(key) for key in ("tokenizer", "pretrained", "path", "model"))
    tokenizer = next((name for name in names if isinstance(name, str) and name), None)
    if tokenizer is None:
        raise GatedevalError(
            'RULER needs the model\'s tokenizer: give --model_args tokenizer=..., or "tokenizer" in --metadata'
        )
    lengths = [int(n) for n in metadata.get("max_seq_lengths", [4096])]
    if odd := [n for n in lengths if n not in LENGTHS]:
        raise GatedevalError(f"max_seq_lengths {odd}: through lm-eval, lengths are 512 to 1048576, doubling each time")
    options: dict[str, Any] = {
        "samples": int(metadata.get("samples", 500)),
        "seed": int(metadata.get("seed", 42)),
        "data": metadata.get("data"),
        "profile": metadata.get("profile", "nvidia"),
    }
    documents = Documents(task, lengths, tokenizer, options)
    if options["samples"]:
        documents[len(lengths) - 1]  # the first sample of every length: a length too small for the task ends it here
    return {"test": documents}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The sample's score, under its length."""
    return {str(doc["max_length"]): score(doc["task"], doc["outputs"], results[0])}


def _loader(task: str) -> Callable[..., dict[str, Documents]]:
    def dataset(**metadata: Any) -> dict[str, Documents]:
        return _dataset(task, **metadata)

    dataset.__name__ = task
    return dataset


for _task in TASKS:
    globals()[_task] = _loader(_task)  # the YAML file of each task names its function
