"""One live vLLM engine per model: three verbs (generate, choose, score) and `set_context`.

Requests are taken from an iterable as the engine has room, and each answer is handed on as it finishes. A prompt is
never truncated: one that does not fit raises an error before the engine sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine import self_check, verification, vllm_api
from harness.engine.causes import explanation
from harness.engine.log import EngineLog
from harness.engine.option_tree import Node, Tree, padded
from harness.engine.precision import running_dtype
from harness.engine.requests import Choice, Completion, EngineError, Prompt, Question, RequestError, check_fits
from harness.engine.rolling import text_answer
from harness.engine.start import set_environment, start_vllm, vllm_arguments
from harness.engine.stream import InFlight, RequestStream
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.hub import resolve, tokenizer_path
from harness.models.stopping import stop_ids
from harness.models.tokenizer import load_tokenizer
from harness.rope import context
from harness.types import GatedevalError


class Engine:
    """A live vLLM engine for one model, started once for all its context settings.

    `contexts`: every setting the engine will run under; the first is in force after the start. A model whose rotary
    encoding cannot be replaced in a live engine (`can_switch_to`) is started under the first one alone.
    `vllm_arguments`: further arguments of vLLM's `EngineArgs`; they replace ours (benchmarks use this). `log`: the file
    that takes what vLLM and its processes print; None: a temporary file, which stays only if the engine fails.
    `core_here`: start faster on a CPU, with vLLM's scheduler in this process (`vllm_api.start`): for few requests,
    since ranks then wait while this process does something else.

    Public attributes: `arguments` (what vLLM was started with), `facts` (what the workers reported; `arithmetic` among
    them is all that changes low-order bits), `setting` and `max_length` (the context setting in force and its longest
    prompt plus answer, in tokens), `max_model_len` (the longest of all settings), `in_flight` (limits on what is in the
    engine at once), `stop_ids` (token ids that end an answer, where a prompt names none).

    Raises:
        GatedevalError: the checkpoint is refused, or a context setting or an engine option cannot be applied to it.
        EngineError: vLLM could not start, or runs another model class, gate or dtype than was planned.
    """

    starts = 0
    """Engine starts in this process. A run needs as many as it has models."""

    def __init__(
        self,
        model: Model,
        contexts: Sequence[ContextSetting],
        options: EngineOptions | None = None,
        vllm_arguments: Mapping[str, Any] | None = None,
        log: Path | None = None,
        *,
        core_here: bool = False,
    ) -> None:
        since = time.monotonic()
        self.model, self.options = model, options or EngineOptions()
        directory = resolve(model)
        self.checkpoint: Checkpoint = inspect(directory, model.gate_layout)
        self.tokenizer_dir = tokenizer_path(model, directory)
        self.stop_ids = stop_ids(self.checkpoint, load_tokenizer(self.tokenizer_dir))
        # Rotary tables are replaced in place, so the first ones must be as long as the longest setting needs.
        longest = max(contexts, key=lambda c: context.max_length(c, self.checkpoint.config))
        if not self.checkpoint.can_switch:
            longest = contexts[0]  # the others get an engine of their own
        self.facts: dict[str, Any] = {}
        self._vllm: Any = None
        self._checked = self._failed = False
        self._log = EngineLog(log, f"{model.label}: {self.checkpoint.path} under {longest.label}")
        try:
            self._start(longest, vllm_arguments or {}, core_here)
            self.facts = verification.verified_facts(self, longest)
            verification.check_replaceable(self, longest)
            self.set_context(contexts[0] if self.can_switch_to(contexts[0]) else longest)
        except BaseException as error:
            self._failed = self._failed or isinstance(error, Exception)
            self.close()
            raise
        self.facts["start_seconds"] = round(time.monotonic() - since, 3)

    # --- start and stop ------------------------------------------------------------------------------------------

    def _start(self, setting: ContextSetting, further: Mapping[str, Any], core_here: bool) -> None:
        """Start vLLM under `setting`."""
        overrides = self.checkpoint.overrides_under(setting)
        self.max_model_len = self.max_length = overrides.max_model_len
        self.setting = self._started_under = setting
        dtype = running_dtype(self.model.dtype, self.checkpoint.dtype)
        with self._log.redirected():  # importing vLLM prints, too
            set_environment(self.options, dtype)
            self.arguments = {
                **vllm_arguments(self.model, self.checkpoint, self.tokenizer_dir, self.options, overrides),
                **further,
            }
        self._vllm = start_vllm(self.arguments, self.checkpoint, self._log, core_here=core_here)
        Engine.starts += 1
        self._stream = RequestStream(self._vllm, self._token_prompt, self._explain)
        self.in_flight = InFlight.twice(*vllm_api.capacity(self._vllm), self.max_model_len)

    def _token_prompt(self, ids: Sequence[int]) -> Any:
        # Keys and values depend on the context setting: with its label as salt, no setting finds another's prefixes.
        return vllm_api.token_prompt(ids, self.setting.label)

    @property
    def dead(self) -> bool:
        """Whether a process of the engine has ended by itself."""
        return self._vllm is not None and vllm_api.is_dead(self._vllm.engine_core)

    def _explain(self, error: BaseException) -> str:
        """One line for people about an error of vLLM's, with the cause from the log."""
        self._failed = True
        return explanation(error, self._log.text(), self._log.path)

    @property
    def vllm(self) -> Any:
        """vLLM's own `LLMEngine`, for comparisons with vLLM's own ways. Raises EngineError after `close`."""
        if self._vllm is None:
            raise EngineError("the engine is closed")
        return self._vllm

    def rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        """Call a method of the worker extension in every rank; the replies, by rank. Arguments and replies: plain data.

        `method`: a name of `harness.gated.worker.WorkerExtension`, or a function of the worker (vLLM sends functions
        only with VLLM_ALLOW_INSECURE_SERIALIZATION=1).

        Raises:
            EngineError: the method failed in a rank, or the engine is dead.
        """
        vllm = self.vllm
        try:
            return vllm.collective_rpc(method, args=args)
        except Exception as error:
            name = method if isinstance(method, str) else method.__name__
            raise EngineError(f"{name} failed in the engine: {self._explain(error)}") from error

    def close(self) -> None:
        """Stop the engine's processes and wait for their end: the next engine needs their memory. Idempotent."""
        engine, self._vllm = self._vllm, None
        if engine is not None:
            self._stream.close()
            # A CPU engine holds no device to release, so it is killed at once instead of after five seconds of grace.
            # Its workers end with it (`harness.gated.watchdog`).
            vllm_api.stop(engine.engine_core, at_once=str(self.facts.get("device")) == "cpu")
        self._log.close(failed=self._failed)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- context settings ----------------------------------------------------------------------------------------

    @property
    def switchable(self) -> bool:
        """Whether the live rotary table can be replaced: one table for all layers, and settings that we compute."""
        return self.checkpoint.can_switch and len(self.facts.get("rope_tables", ())) == 1

    def can_switch_to(self, setting: ContextSetting) -> bool:
        """Whether `set_context(setting)` is possible; if not, the setting needs an engine of its own."""
        return setting == self._started_under or self.switchable

    def set_context(self, setting: ContextSetting) -> None:
        """Replace the rotary tables in every rank, check them there, and empty the prefix cache.

        Raises:
            GatedevalError: the setting needs more positions than the engine was started for, or the model's rotary
                encoding is not one that can be replaced.
            EngineError: requests are still running.
        """
        length = context.max_length(setting, self.checkpoint.config)
        if length > self.max_model_len:
            raise GatedevalError(
                f"context {setting.label!r} needs {length} tokens, the engine was started for {self.max_model_len}"
            )
        if not self.can_switch_to(setting):
            raise EngineError(
                f"context {setting.label!r} needs an engine of its own: the rotary encoding of {self.checkpoint.path}"
                " cannot be replaced in a live engine, and this engine was started under"
                f" {self._started_under.label!r}"
            )
        if self.switchable and (rope := self.checkpoint.rope_under(setting)):
            self.rpc("gatedeval_set_rope", rope.to_plain())
        self._empty_cache()
        self.setting, self.max_length = setting, length
        self._checked = False

    def _empty_cache(self) -> None:
        try:
            emptied = self.vllm.reset_prefix_cache()
        except Exception as error:
            raise EngineError(f"the prefix cache could not be reset: {self._explain(error)}") from error
        if not emptied:
            raise EngineError("the prefix cache could not be reset: requests are still running")

    def self_check(self) -> None:
        """Ask a few short prompts under the setting in force and look at the logits (`harness.engine.self_check`).

        A run does this before the first sample of every setting. A second call does nothing until `set_context`. The
        prefix cache is empty afterwards.

        Raises:
            SelfCheckError: the logits are not finite, the same for every token, or do not depend on the prompt; or the
                engine gives other log-probabilities for the same prompt.
        """
        if self._checked:
            return
        sizes = vllm_api.sizes(self.vllm)
        sizes["max_length"] = self.max_length
        bound = verification.rounding(self.facts["arithmetic"])
        try:
            self_check.run(self._stream, self.in_flight, sizes, bound)
        except EngineError as error:
            raise type(error)(f"self-check under context {self.setting.label!r}: {error}") from error
        self._empty_cache()
        self._checked = True

    # --- the three verbs -----------------------------------------------------------------------------------------

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion | Choice]:
        """Answer prompts and questions as one stream; answers arrive in the order in which they finish.

        None among `requests`: the next one is not ready yet. The engine continues with those it has, then asks again.

        Raises:
            GatedevalError: a request does not fit the context setting.
            EngineError: the engine died, or gave up on a request.
        """
        source, texts = iter(requests), list[Question]()
        while True:
            yield from self._answer(self._until_text(source, texts))
            if not texts:
                return
            yield text_answer(texts.pop(), self.rpc, self._answer, self._empty_cache)  # nothing else is running now

    def _until_text(
        self, requests: Iterator[Prompt | Question | None], texts: list[Question]
    ) -> Iterator[Prompt | Question | None]:
        """The requests up to the next one that passes through the model alone, which goes to `texts`.

        Compiled code does not call the hook that computes a text's losses. There, every token of it is a request.
        """
        for request in requests:
            if isinstance(request, Question) and request.rolling and self.arguments["enforce_eager"]:
                texts.append(request)
                return
            yield request

    def _answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion | Choice]:
        trees: dict[Hashable, Tree] = {}
        for item, output, seconds in self._stream.run(self._vllm_requests(requests, trees), self.in_flight):
            if isinstance(item, Prompt):
                yield _completion(item, output, seconds)
                continue
            tree = trees[item.key]
            tree.take(item, output, seconds)
            if not tree.unanswered:
                yield trees.pop(item.key).choice()

    def generate(self, prompts: Iterable[Prompt]) -> Iterator[Completion]:
        """Continue each prompt."""
        for answer in self.answer(prompts):
            assert isinstance(answer, Completion)
            yield answer

    def choose(self, questions: Iterable[Question]) -> Iterator[Choice]:
        """Log-likelihoods of each question's options.

        The options form a tree of tokens (`option_tree`): one request per inner node asks for the next-token
        log-probabilities of its children. Single-token options over one context are thus one request. Longer options
        share the requests for their common beginning, and the prefix cache computes the context once.
        """
        for answer in self.answer(questions):
            assert isinstance(answer, Choice)
            yield answer

    def score(
        self, pairs: Iterable[tuple[Hashable, Sequence[int], Sequence[int]]]
    ) -> Iterator[tuple[Hashable, float, bool]]:
        """(key, context ids, continuation ids) -> (key, log-likelihood in nats, whether greedy decoding gives it)."""
        questions = (Question(key, ((tuple(c), tuple(t)),)) for key, c, t in pairs)
        for choice in self.choose(questions):
            yield choice.key, choice.logprobs[0], choice.greedy[0]

    def _vllm_requests(
        self, requests: Iterable[Prompt | Question | None], trees: dict[Hashable, Tree]
    ) -> Iterator[tuple[Prompt | Node, Sequence[int], Any] | None]:
        """(prompt or tree node, token ids, SamplingParams) of every request. Puts each question's tree into `trees`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        final = RequestOutputKind.FINAL_ONLY
        for request in requests:
            if request is None:
                yield None
                continue
            if isinstance(request, Prompt):
                self._check_fits(len(request.ids), request.max_tokens, request.key)
                params = SamplingParams(
                    temperature=request.temperature,
                    seed=0 if request.temperature else None,
                    max_tokens=request.max_tokens,
                    stop=list(request.stop) or None,
                    stop_token_ids=list(self.stop_ids if request.stop_ids is None else request.stop_ids),
                    ignore_eos=True,  # vLLM's own list: ours, in stop_token_ids, takes its place
                    output_kind=final,
                )
                yield request, request.ids, params
                continue
            for ctx, continuation in request.options:
                self._check_fits(len(ctx), len(continuation), request.key)
            tree = trees[request.key] = Tree(request)
            for node in tree.nodes:
                children = padded(sorted(node.children))
                params = SamplingParams(
                    temperature=0.0, max_tokens=1, logprob_token_ids=children, detokenize=False, output_kind=final
                )
                yield node, node.ids, params

    def _check_fits(self, prompt_tokens: int, answer_tokens: int, what: object) -> None:
        check_fits(prompt_tokens, answer_tokens, self.max_length, self.setting.label, what)


def _completion(prompt: Prompt, output: Any, seconds: float) -> Completion:
    """The answer to `prompt` from vLLM's RequestOutput."""
    answer = output.outputs[0]
    if answer.finish_reason not in ("stop", "length"):
        raise RequestError(prompt.key, f"the engine gave up with finish reason {answer.finish_reason!r}")
    ids = tuple(answer.token_ids)
    cached = output.num_cached_tokens or 0
    return Completion(prompt.key, answer.text, len(ids), answer.finish_reason, seconds, ids, len(prompt.ids), cached)
