"""`generate`: the samples of one task at one length, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harness.data.folder import DataFolder
from harness.models.tokenizer import Tokenizer, load_tokenizer
from tasks.ruler.fair import fair_samples
from tasks.ruler.fit import TooShort
from tasks.ruler.lengths import explained
from tasks.ruler.nvidia import nvidia_samples
from tasks.ruler.request import Request
from tasks.ruler.sample import RulerSample


def generate(
    request: Request | str, *, tokenizer: Any = None, data: DataFolder | Path | str | None = None, **options: Any
) -> Iterator[RulerSample]:
    """The samples of a request, lazily: `generate(Request(task="vt", ...))`, or `generate("vt", length=4096, ...)`.

    With a task's name, the options are the fields of `Request`; `tokenizer` is then whatever `load_tokenizer` takes,
    and `data` a folder's path (None: GATEDEVAL_DATA, else downloads).

    Raises:
        GatedevalError: an unknown task or option, missing data, or a length too small (the message names the minimum).
    """
    if isinstance(request, str):
        if not isinstance(data, DataFolder):
            data = DataFolder(None if data is None else Path(data))
        request = request_for(request, tokenizer, data=data, **options)
    return _samples(request)


def _samples(request: Request) -> Iterator[RulerSample]:
    try:
        yield from fair_samples(request) if request.profile == "fair" else nvidia_samples(request)
    except TooShort as error:
        raise explained(error, request) from error


def request_for(task: str, tokenizer: Any, **options: Any) -> Request:
    """The request for a task with the tokenizer that `tokenizer` names; `options` are the other fields of `Request`.

    What is wrong with the request is found before the tokenizer, which may be on the hub, is loaded.
    """
    draft = Request(task=task, tokenizer=cast(Tokenizer, None), **options)
    return replace(draft, tokenizer=load_tokenizer(tokenizer))
