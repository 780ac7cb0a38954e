"""RULER for lm-eval's own command line.

`lm_eval --include_path tasks --tasks gatedeval_ruler --metadata '{"max_seq_lengths":[4096]}'`

Keys of the metadata: `max_seq_lengths` (tokens of prompt and answer; [4096]), `samples` (500), `seed` (42), `profile`
(nvidia), `data` (GATEDEVAL_DATA), `tokenizer` (that of the model in model_args). Documents have upstream's fields.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    from tasks.ruler import TASKS, generate, load_tokenizer, score
except ImportError:  # run from a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from tasks.ruler import TASKS, generate, load_tokenizer, score
from harness.types import GatedevalError

LENGTHS = tuple(512 << n for n in range(12))
"""lm-eval needs the names of its metrics beforehand, and every length is a metric of its own."""


def rows(task: str, lengths: list[int], tokenizer: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of a task, length by length."""
    loaded = load_tokenizer(tokenizer)
    for length in lengths:
        for sample in generate(task, tokenizer=loaded, length=length, **options):
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


def _dataset(task: str, **metadata: Any) -> dict[str, Any]:
    import datasets

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
    for length in lengths:  # raise errors here: the datasets library would wrap them in its own
        one = {**options, "samples": min(options["samples"], 1)}
        next(generate(task, tokenizer=tokenizer, length=length, **one), None)
    cache = tempfile.mkdtemp(prefix="gatedeval-ruler-")  # on disk: 500 samples of 128K are 300 MB
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    samples = datasets.Dataset.from_generator(
        rows,
        gen_kwargs={"task": task, "lengths": lengths, "tokenizer": tokenizer, "options": options},
        cache_dir=cache,
        split=datasets.Split.TEST,
    )
    return {"test": samples}


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The sample's score, under its length."""
    return {str(doc["max_length"]): score(doc["task"], doc["outputs"], results[0])}


def _loader(task: str) -> Callable[..., dict[str, Any]]:
    def dataset(**metadata: Any) -> dict[str, Any]:
        return _dataset(task, **metadata)

    dataset.__name__ = task
    return dataset


for _task in TASKS:
    globals()[_task] = _loader(_task)  # the YAML file of each task names its function
