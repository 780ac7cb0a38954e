"""Answers from elsewhere, and which samples of a run were asked the very same thing, by their prompts' token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.benchmarks.presentation import presentation_of
from harness.config import Config, from_dict
from harness.engine.encoding import Encoder
from harness.engine.requests import SampleRequest
from harness.models.admission import admit
from harness.models.tokenizer import load_tokenizer
from harness.store import Store
from harness.tables.frames import check_label, labels
from harness.types import Cell, GatedevalError


@dataclass(frozen=True, kw_only=True)
class Imported:
    """One sample that was answered elsewhere.

    `where`: file and line, for messages. `number`: its place among the samples of its task, from 0. `asked`: what the
    model was given, each reading of the file a request; empty where the file does not have the prompt. `identity`: text
    that is equal where two files have the same question; it stands for the prompt where token ids are not known.
    """

    where: str
    number: int
    references: list[str]
    response: str
    scores: dict[str, float]
    identity: str
    finish_reason: str = "stop"
    asked: Sequence[SampleRequest] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Match:
    """The sample of a run that has the same prompt. `tokens`: prompt tokens, as `Sample.prompt_tokens` has them."""

    id: str
    prompt_hash: str
    tokens: int


class Matcher:
    """Finds the samples of a run by their prompts, for one of its context settings.

    A prompt is encoded with the tokenizer of the run's model, as a run encodes it, and hashed with everything else that
    was asked: answer budget, stop strings, temperature, or the options that were compared.
    """

    def __init__(self, run: Path | str, context: str | None) -> None:
        """`context`: a label of the run; None where it has only one.

        Raises GatedevalError where `run` is no run, or does not have the context.
        """
        self.store = Store.read(Path(run))
        check_label(self.store, "contexts", context)
        known = labels(self.store, "contexts")
        if context is None and len(known) != 1:
            raise GatedevalError(
                f"{self.store.path} has several context settings ({', '.join(map(repr, known))}); name the one that "
                "the answers were given under with --context"
            )
        self.context = context if context is not None else known[0]
        self._known: dict[Cell, dict[str, Match]] = {}

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.store.manifest.get("name") or self.store.path.name)

    @property
    def cells(self) -> list[Cell]:
        """The run's cells of one model under the context."""
        return [c for c in self.store.cells if (c.model, c.context) == (self._model, self.context)]

    def cell(self, lm_eval_task: str, length: int) -> Cell | None:
        """The run's cell of a task by its name in lm-eval, at a length (0: none)."""
        named = (c for c in self.cells if presentation_of(c.benchmark).lm_eval_task(c.task) == lm_eval_task)
        return next((c for c in named if c.length == length), None)

    def find(self, cell: Cell | None, sample: Imported) -> Match | None:
        """The sample of the run's `cell` with the same prompt; None where there is none."""
        if cell is None:
            return None
        known = self._hashes(cell)
        return next((known[hash] for hash in self._prompt_hashes(sample) if hash in known), None)

    @cached_property
    def _model(self) -> str:
        return next((c.model for c in self.store.cells if c.context == self.context), "")

    @cached_property
    def _encoder(self) -> Encoder:
        settings = {"name": "run", **(self.store.manifest.get("config") or {})}
        config: Config = from_dict(settings, name=str(self.store.path / "run.json"))
        model = next((m for m in config.models if m.label == self._model), None)
        setting = next((c for c in config.contexts if c.label == self.context), None)
        if model is None or setting is None:
            raise GatedevalError(f"{self.store.path}: its config does not have the model {self._model!r}")
        if config.thinking:
            raise GatedevalError(f"{self.store.path} has thinking on: its prompts cannot be compared with others")
        try:
            admitted = admit(model)
        except GatedevalError as error:
            raise GatedevalError(
                f"prompts are compared by their token ids, which needs the tokenizer of {self._model!r}, a model of "
                f"{self.store.path}: {error}"
            ) from error
        longest = admitted.checkpoint.overrides_under(setting).max_model_len
        return Encoder(load_tokenizer(admitted.tokenizer_dir), admitted.checkpoint, setting, longest, model.dtype)

    def _hashes(self, cell: Cell) -> dict[str, Match]:
        """prompt hash -> sample, of one cell of the run."""
        if cell not in self._known:
            found = self._known[cell] = {}
            for s in self.store.samples(cell):
                if hash := s.extra.get("prompt_hash"):
                    found[str(hash)] = Match(id=s.id, prompt_hash=str(hash), tokens=s.prompt_tokens)
        return self._known[cell]

    def _prompt_hashes(self, sample: Imported) -> Iterator[str]:
        encoder = self._encoder if sample.asked else None
        for asked in sample.asked:
            assert encoder is not None
            try:
                request = encoder.encode(asked)
            except GatedevalError:  # longer than the context takes, or options that share a token: the run has no such
                continue
            yield encoder.hashes(request, "")[1]
