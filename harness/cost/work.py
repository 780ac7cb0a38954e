"""The work of a run in the seven quantities that its time is taken to be linear in."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engine.load import Load
from harness.models.kv_cache import KvLayers


@dataclass(frozen=True, kw_only=True)
class Work:
    """Sums over requests.

    `made`: prompt tokens that are generated and encoded. `requests`: their number. `computed`: prompt tokens that are
    not in the prefix cache. `pairs`: pairs of a computed query and a key that it attends to, of one head, as a mean
    over layers (the quadratic part). `answers`: tokens that are generated one by one. `steps`: passes through the
    model. `reads`: keys that the generated tokens attend to.
    """

    made: float = 0.0
    requests: float = 0.0
    computed: float = 0.0
    pairs: float = 0.0
    answers: float = 0.0
    steps: float = 0.0
    reads: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __mul__(self, times: float) -> Work:
        return Work(**{name: value * times for name, value in asdict(self).items()})

    def row(self) -> NDArray[np.float64]:
        """The quantities as an array (7,), in the order of `QUANTITIES`."""
        return np.array(astuple(self), dtype=np.float64)

    def to_plain(self) -> dict[str, float]:
        """Plain data; `Work.from_plain` is the inverse."""
        return {name: round(value, 3) for name, value in asdict(self).items()}

    @classmethod
    def from_plain(cls, data: Any) -> Work:
        """Work from plain data; what is missing or no number is 0."""
        found = data if isinstance(data, dict) else {}
        return cls(**{q: float(v) for q in QUANTITIES if isinstance(v := found.get(q), int | float)})


QUANTITIES = tuple(f.name for f in fields(Work))


def work_of(
    kv: KvLayers | None,
    *,
    tokens: float,
    cached: float,
    answer: float,
    requests: float = 1.0,
    together: float = 1.0,
    batch: float = 4096.0,
) -> Work:
    """The work of one sample.

    `tokens`, `cached`: of all its prompts together; `answer`: tokens of its answer, the first of which comes with the
    prompt's last step. `together`: answers that are generated at once; `batch`: tokens of a step.
    """
    each, found = tokens / requests, min(cached, max(tokens - requests, 0.0)) / requests
    pairs = kv.attended(each, found) if kv is not None else (each**2 - found**2) / 2
    computed = tokens - found * requests
    further = max(answer - 1.0, 0.0)
    return Work(
        made=each,
        requests=requests,
        computed=computed,
        pairs=pairs * requests,
        answers=further,
        steps=further / max(together, 1.0) + computed / batch,
        reads=further * (each + answer / 2),
    )


def expected_work(
    load: Load, kv: KvLayers | None, *, samples: int, answer: float, together: float, batch: float, block: int | None
) -> Work:
    """The work of a cell with so many samples, before one of them was made.

    `answer`: tokens of an answer, as far as they are known. `block`: tokens of a block of the prefix cache, which finds
    whole blocks alone; None: no prefix cache.
    """
    shared = 0.0
    if block is not None and samples > 1:
        each = (load.shared or 0.0) / load.requests
        # What is shared by few blocks is mostly the same beginning for all; else its length is anything.
        whole = each // block * block if each < 4 * block else each - block / 2
        shared = whole * load.requests * (samples - 1) / samples
    return (
        work_of(
            kv,
            tokens=load.tokens,
            cached=shared,
            answer=answer,
            requests=load.requests,
            together=together,
            batch=batch,
        )
        * samples
    )
