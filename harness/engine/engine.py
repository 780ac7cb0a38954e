"""One live vLLM engine per model: three verbs (generate, choose, score) and `set_context`.

Requests are taken from an iterable as the engine has room, and each answer is handed on as it finishes. A prompt is
never truncated: one that does not fit raises an error before the engine sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.config import ContextSetting, EngineOptions, Model
from harness.engine.option_tree import Node, Tree, padded
from harness.engine.requests import Choice, Completion, EngineError, Prompt, Question, RequestError, check_fits
from harness.engine.start import start_vllm, vllm_arguments
from harness.engine.stream import InFlight, RequestStream
from harness.gated import LOAD_FORMAT
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
    `vllm_arguments`: further arguments of vLLM's `EngineArgs`; they replace ours (benchmarks use this).

    Public attributes: `arguments` (what vLLM was started with), `facts` (what the workers reported), `setting` and
    `max_length` (the context setting in force and its longest prompt plus answer, in tokens), `max_model_len` (the
    longest of all settings), `in_flight` (limits on what is in the engine at once), `stop_ids` (token ids that end an
    answer, where a prompt names none).

    Raises:
        GatedevalError: the checkpoint is refused, or a context setting cannot be applied to it.
        EngineError: vLLM could not start, or runs another model class or gate than the checkpoint needs.
    """

    starts = 0
    """Engine starts in this process. A run needs as many as it has models."""

    def __init__(
        self,
        model: Model,
        contexts: Sequence[ContextSetting],
        options: EngineOptions | None = None,
        vllm_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        since = time.monotonic()
        self.model, self.options = model, options or EngineOptions()
        directory = resolve(model)
        self.checkpoint: Checkpoint = inspect(directory)
        self.tokenizer_dir = tokenizer_path(model, directory)
        self.stop_ids = stop_ids(self.checkpoint, load_tokenizer(self.tokenizer_dir))
        # Rotary tables are replaced in place, so the first ones must be as long as the longest setting needs.
        longest = max(contexts, key=lambda c: context.max_length(c, self.checkpoint.config))
        if not self.checkpoint.can_switch:
            longest = contexts[0]  # the others get an engine of their own
        self.facts: dict[str, Any] = {}
        self._start(longest, vllm_arguments or {})
        try:
            self.facts = self._verify(longest)
            self.set_context(contexts[0] if self.can_switch_to(contexts[0]) else longest)
        except BaseException:
            self.close()
            raise
        self.facts["start_seconds"] = round(time.monotonic() - since, 3)

    # --- start and stop ------------------------------------------------------------------------------------------

    def _start(self, setting: ContextSetting, further: Mapping[str, Any]) -> None:
        """Start vLLM under `setting`."""
        overrides = self.checkpoint.overrides_under(setting)
        self.max_model_len = self.max_length = overrides.max_model_len
        self.setting = self._started_under = setting
        self.arguments = {
            **vllm_arguments(self.model, self.checkpoint, self.tokenizer_dir, self.options, overrides),
            **further,
        }
        self._vllm: Any = start_vllm(self.arguments, self.checkpoint, self.options)
        Engine.starts += 1
        self._stream = RequestStream(self._vllm)
        self.in_flight = InFlight.twice_capacity(self._vllm.vllm_config, self.max_model_len)

    def _verify(self, setting: ContextSetting) -> dict[str, Any]:
        """Check what every worker runs: model class, gate, vLLM's own rotary table under `setting`, longest prompt."""
        ranks = self.rpc("gatedeval_facts")
        planned = self.checkpoint.architecture
        for rank, facts in enumerate(ranks):
            if self.checkpoint.layout and facts["model_class"] != planned:
                raise EngineError(
                    f"rank {rank} runs {facts['model_class']}, the checkpoint needs {planned}: vLLM has not loaded the"
                    " gatedeval plugin (is VLLM_PLUGINS set to exclude it? is gatedeval installed in this environment?)"
                )
            if facts["gates"] and facts["gates"] != [self.checkpoint.gate]:
                raise EngineError(f"rank {rank} runs gates {facts['gates']}, the checkpoint has {self.checkpoint.gate}")
            self._check_loaded(rank, facts["model_class"], facts.pop("unloaded"))
        limit = self.vllm.model_config.max_model_len
        if limit < self.max_model_len:
            raise EngineError(f"the engine takes {limit} tokens, {self.max_model_len} were planned")
        facts = dict(ranks[0], max_model_len=limit, ranks=len(ranks))
        # counted in the files: vLLM's CPU backend repacks linear weights, which are then no parameters of the model
        facts["parameters"] = self.checkpoint.parameters
        if rope := self.checkpoint.rope_under(setting):
            # vLLM computed its table from the overrides. If it ignored a setting, its table differs from ours.
            facts["rope_deviation"] = max(self.rpc("gatedeval_check_rope", rope.to_plain(), self.max_model_len))
        return facts

    def _check_loaded(self, rank: int, model_class: str, unloaded: list[str] | None) -> None:
        """Refuse a model with parameters that no tensor of the checkpoint reached."""
        if unloaded is None:
            default = self.arguments.get("load_format") == LOAD_FORMAT
            if default and self.checkpoint.quantisation is None and not self._vllm.model_config.quantization:
                raise EngineError(f"rank {rank} did not report which parameters of {model_class} were loaded")
        elif unloaded:
            shown = "; ".join(unloaded[:4]) + ("; ..." if len(unloaded) > 4 else "")
            raise EngineError(
                f"{self.checkpoint.path}: no tensor in its weight files reached {len(unloaded)} parameter(s) of"
                f" {model_class} (rank {rank}): {shown}. The checkpoint is incomplete, or its tensors have names that"
                " vLLM's class does not know"
            )

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
        """
        return self.vllm.collective_rpc(method, args=args)

    def close(self) -> None:
        """Stop the engine's processes. Idempotent."""
        engine, self._vllm = self._vllm, None
        if engine is not None:
            self._stream.close()
            # A CPU engine holds no device to release, so it is killed at once instead of after five seconds of grace.
            # Its workers end with it (`harness.gated.watchdog`).
            on_cpu = str(self.facts.get("device")) == "cpu"
            engine.engine_core.shutdown(timeout=0.0 if on_cpu else None)

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
        if not self.vllm.reset_prefix_cache():
            raise EngineError("the prefix cache could not be reset: requests are still running")
        self.setting, self.max_length = setting, length

    # --- the three verbs -----------------------------------------------------------------------------------------

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion | Choice]:
        """Answer prompts and questions as one stream; answers arrive in the order in which they finish.

        None among `requests`: the next one is not ready yet. The engine continues with those it has, then asks again.

        Raises:
            GatedevalError: a request does not fit the context setting.
            EngineError: the engine died, or gave up on a request.
        """
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
