"""vLLM behind three verbs, generate, choose and score, and `set_context`. One engine per model.

Everything streams: requests are taken from an iterable as the engine has room, and each answer is handed on as it
finishes. Nothing is ever truncated: a prompt that does not fit raises before the engine sees it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.config import ContextSetting, Model
from harness.config import Engine as EngineOptions
from harness.engine.option_tree import Node, Tree, padded
from harness.engine.requests import Choice, Completion, EngineError, Prompt, Question, check_fits
from harness.gated.watchdog import ENGINE_OF
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.hub import resolve, tokenizer_path
from harness.models.layout import ARCHITECTURE
from harness.rope import context
from harness.types import GatedevalError

WORKER = "harness.gated.worker.WorkerExtension"
_MOST_IN_FLIGHT = 8_000_000  # prompt tokens in the engine at once


class Engine:
    """A live vLLM engine for one model, started once for all its context settings.

    Raises:
        GatedevalError: the checkpoint is refused, or a context setting cannot be had.
        EngineError: vLLM could not start, or resolved to another model class than the checkpoint needs.
    """

    starts = 0  # engine starts of this process; a plan must not need more than it has models

    def __init__(self, model: Model, contexts: Sequence[ContextSetting], options: EngineOptions | None = None) -> None:
        since = time.monotonic()
        self.model, self.options = model, options or EngineOptions()
        directory = resolve(model)
        self.checkpoint: Checkpoint = inspect(directory)
        self.tokenizer_dir = tokenizer_path(model, directory)
        config = self.checkpoint.config
        # The tables are replaced in place, so they must be as long as the longest setting needs from the start.
        first = max(contexts, key=lambda c: context.max_length(c, config))
        given = context.overrides(first, config)
        self.max_model_len = given.max_model_len
        self.setting = first
        self.max_length = given.max_model_len
        self._llm = self._start(given.hf_overrides)
        self.facts = self._verify(first)
        self.set_context(contexts[0])
        self.facts["start_seconds"] = round(time.monotonic() - since, 3)

    # --- start and stop ------------------------------------------------------------------------------------------

    def _start(self, hf_overrides: Mapping[str, Any]) -> Any:
        """Start vLLM. Its log goes to stderr: stdout is data."""
        self._environment()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        self._check_plugin()
        self.arguments = self._arguments(hf_overrides)
        try:
            # Batch sizes are those of offline work (vLLM's LLM class), not the smaller ones of a server.
            engine = LLMEngine.from_engine_args(EngineArgs(**self.arguments), usage_context=UsageContext.LLM_CLASS)
        except Exception as error:
            raise EngineError(f"vLLM did not start on {self.checkpoint.path}: {_one_line(error)}") from error
        Engine.starts += 1
        threading.Thread(target=_wake_when_dead, args=(engine.engine_core,), daemon=True).start()
        return engine

    def _arguments(self, hf_overrides: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM's arguments; what the config leaves open is left to vLLM."""
        o = self.options
        arguments: dict[str, Any] = {
            "model": str(self.checkpoint.path),
            "tokenizer": str(self.tokenizer_dir),
            "dtype": self.model.dtype,
            "max_model_len": self.max_model_len,
            "hf_overrides": dict(hf_overrides),
            "tensor_parallel_size": o.tensor_parallel_size,
            "enforce_eager": o.enforce_eager,
            "enable_prefix_caching": o.prefix_caching,
            "generation_config": "vllm",  # the repository's temperature or penalties must not reach the sampler
            "worker_extension_cls": WORKER,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
            "seed": 0,
        }
        optional = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size")
        return arguments | {name: value for name in optional if (value := getattr(o, name)) is not None}

    def _check_plugin(self) -> None:
        """Refuse a gated checkpoint where vLLM does not know the class: stock vLLM would load it silently wrong."""
        from vllm import ModelRegistry
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        planned = self.checkpoint.architecture
        if planned == ARCHITECTURE and planned not in ModelRegistry.get_supported_archs():
            raise GatedevalError(
                f"{self.checkpoint.path} needs {planned}, which vLLM does not know: the gatedeval plugin is not loaded"
                " (is VLLM_PLUGINS set to exclude it? is gatedeval installed in this environment?)"
            )

    def _environment(self) -> None:
        """Defaults for what vLLM reads from the environment; what the user has set stands."""
        os.environ[ENGINE_OF] = str(os.getpid())  # no engine outlives us
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # Of the libraries, once per worker process; and of what a stopped engine leaves to be swept up.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore:resource_tracker:UserWarning")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # vLLM's default leaves one core idle
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(self._cache_gib()))
        ranks, cores = self.options.tensor_parallel_size, os.cpu_count() or 1
        if ranks > 1:  # without it the ranks of a CPU engine fight for the same cores
            share = max(1, cores // ranks)
            bind = "|".join(f"{r * share}-{(r + 1) * share - 1}" if share > 1 else str(r % cores) for r in range(ranks))
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", bind)

    def _cache_gib(self) -> int:
        """KV cache for a CPU engine, GiB: room for four of the longest prompts, between 1 and a quarter of memory."""
        if self.options.kv_cache_gib is not None:
            return max(1, round(self.options.kv_cache_gib))
        config, layout = self.checkpoint.config, self.checkpoint.layout
        width = 2 * layout.num_kv_heads * layout.head_dim if layout else 2 * int(config.get("hidden_size", 4096))
        per_token = int(config.get("num_hidden_layers", 32)) * width * 4
        wanted = 4 * self.max_model_len * per_token / 2**30
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return int(max(1, min(wanted + 1, memory / 4)))

    def _verify(self, setting: ContextSetting) -> dict[str, Any]:
        """Read back from every worker what runs there: model class, gate, rotary table, longest prompt."""
        ranks = self._llm.collective_rpc("gatedeval_facts")
        planned = self.checkpoint.architecture
        for rank, facts in enumerate(ranks):
            if self.checkpoint.layout and facts["model_class"] != planned:
                raise EngineError(
                    f"rank {rank} runs {facts['model_class']}, the checkpoint needs {planned}: vLLM has not loaded the"
                    " gatedeval plugin (is VLLM_PLUGINS set to exclude it? is gatedeval installed in this environment?)"
                )
            if facts["gates"] and facts["gates"] != [self.checkpoint.gate]:
                raise EngineError(f"rank {rank} runs gates {facts['gates']}, the checkpoint has {self.checkpoint.gate}")
        limit = self._llm.model_config.max_model_len
        if limit < self.max_model_len:
            raise EngineError(f"the engine takes {limit} tokens, {self.max_model_len} were planned")
        facts = dict(ranks[0], max_model_len=limit, ranks=len(ranks))
        if self._computable(setting):
            # vLLM's own tables under the overrides against ours: a setting that was silently ignored shows here
            facts["rope_deviation"] = max(
                self._llm.collective_rpc("gatedeval_check_rope", args=(self._rope(setting), self.max_model_len))
            )
        return facts

    def close(self) -> None:
        """Stop the engine's processes. Idempotent."""
        llm, self._llm = self._llm, None
        if llm is not None:
            # Nothing is running, and a CPU engine has nothing to hand back: it is killed, instead of waiting out five
            # seconds of grace. Workers follow their core, however it ends (`gated.parent`).
            on_cpu = str(self.facts.get("device")) == "cpu"
            llm.engine_core.shutdown(timeout=0.0 if on_cpu else None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- context settings ----------------------------------------------------------------------------------------

    def set_context(self, setting: ContextSetting) -> None:
        """Replace the rotary tables in every rank, read them back, and forget the prefix cache.

        Raises:
            GatedevalError: the setting needs more positions than the engine was started for, or the model's rotary
                encoding is not one that can be replaced.
        """
        length = context.max_length(setting, self.checkpoint.config)
        if length > self.max_model_len:
            raise GatedevalError(
                f"context {setting.label!r} needs {length} tokens, the engine was started for {self.max_model_len}"
            )
        if self._computable(setting):
            self._llm.collective_rpc("gatedeval_set_rope", args=(self._rope(setting),))
        if not self._llm.reset_prefix_cache():
            raise EngineError("the prefix cache could not be reset: requests are still running")
        self.setting, self.max_length = setting, length

    def _computable(self, setting: ContextSetting) -> bool:
        """Whether the setting's tables are ours to compute; a native setting of another family is left to vLLM."""
        if not context.is_native(setting):
            return True
        return self.checkpoint.layout is not None

    def _rope(self, setting: ContextSetting) -> dict[str, Any]:
        """The setting's rotary encoding as plain data for the workers."""
        rope = context.rope_of(setting, self.checkpoint.config)
        return {
            "inv_freq": [float(f) for f in rope.inv_freq],
            "attention_scaling": float(rope.attention_scaling),
            "parameters": dict(rope.parameters),
            "length": int(rope.length),
        }

    # --- the three verbs -----------------------------------------------------------------------------------------

    def _check(self, prompt_tokens: int, answer_tokens: int, what: object) -> None:
        check_fits(prompt_tokens, answer_tokens, self.max_length, self.setting.label, what)

    def answer(self, requests: Iterable[Prompt | Question | None]) -> Iterator[Completion | Choice]:
        """Answer prompts and questions as one stream; answers arrive in the order in which they finish.

        A None among `requests` says that the next one is not ready yet: the engine goes on meanwhile, then asks again.
        """
        trees: dict[Hashable, Tree] = {}
        for item, output, seconds in self._stream(self._requests(requests, trees)):
            if isinstance(item, Prompt):
                answer = output.outputs[0]
                if answer.finish_reason not in ("stop", "length"):
                    raise EngineError(f"{item.key}: the engine gave up with finish reason {answer.finish_reason!r}")
                ids = tuple(answer.token_ids)
                sent, cached = len(item.ids), output.num_cached_tokens or 0
                yield Completion(item.key, answer.text, len(ids), answer.finish_reason, seconds, ids, sent, cached)
                continue
            tree = trees[item.key]
            tree.take(item, output, seconds)
            if not tree.waiting:
                yield trees.pop(item.key).choice()

    def generate(self, prompts: Iterable[Prompt]) -> Iterator[Completion]:
        """Continue each prompt."""
        for answer in self.answer(prompts):
            assert isinstance(answer, Completion)
            yield answer

    def choose(self, questions: Iterable[Question]) -> Iterator[Choice]:
        """Log-likelihoods of each question's options.

        Options are laid out as a tree of tokens: one request per inner node asks for its children's next-token
        log-probabilities. Single-token options over a shared context are thus one request; longer ones share what they
        begin with, and the prefix cache computes the context once.
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

    def _requests(
        self, requests: Iterable[Prompt | Question | None], trees: dict[Hashable, Tree]
    ) -> Iterator[tuple[Prompt | Node, Sequence[int], Any] | None]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        final = RequestOutputKind.FINAL_ONLY
        for request in requests:
            if request is None:
                yield None
                continue
            if isinstance(request, Prompt):
                self._check(len(request.ids), request.max_tokens, request.key)
                params = SamplingParams(
                    temperature=request.temperature,
                    seed=0 if request.temperature else None,
                    max_tokens=request.max_tokens,
                    stop=list(request.stop) or None,
                    output_kind=final,
                )
                yield request, request.ids, params
                continue
            for ctx, continuation in request.options:
                self._check(len(ctx), len(continuation), request.key)
            tree = trees[request.key] = Tree(request)
            for node in tree.nodes:
                asked = padded(sorted(node.children))
                params = SamplingParams(
                    temperature=0.0, max_tokens=1, logprob_token_ids=asked, detokenize=False, output_kind=final
                )
                yield node, node.ids, params

    def _stream(self, requests: Iterable[tuple[Any, Sequence[int], Any] | None]) -> Iterator[tuple[Any, Any, float]]:
        """Feed (item, token ids, sampling) as the engine has room; yield (item, output, seconds since admission)."""
        llm, source = self._llm, iter(requests)
        most_requests, most_tokens = self._look_ahead()
        running: dict[str, tuple[Any, float, int]] = {}
        tokens = 0  # of the prompts in `running`
        self._count = getattr(self, "_count", 0)
        more = True
        try:
            while more or running:
                while more and (not running or (len(running) < most_requests and tokens < most_tokens)):
                    try:
                        request = next(source)
                    except StopIteration:
                        more = False
                        break
                    if request is None:  # nothing ready: the engine goes on; an idle one must not spin
                        time.sleep(0 if running else 0.002)
                        break
                    item, ids, params = request
                    name = str(self._count)
                    self._count += 1
                    running[name] = (item, time.monotonic(), len(ids))
                    tokens += len(ids)
                    llm.add_request(name, {"prompt_token_ids": list(ids)}, params)
                for output in self._step() if running else ():
                    if output.finished:
                        item, since, size = running.pop(output.request_id)
                        tokens -= size
                        yield item, output, time.monotonic() - since
        finally:
            if running and self._llm is not None:
                llm.abort_request(list(running))

    def _look_ahead(self) -> tuple[int, int]:
        """(requests, prompt tokens) that may be in flight: twice what the engine can work on, so that it never waits.

        Prompts in flight are lists of Python integers, here and in the engine's process: about 36 bytes a token.
        """
        config = self._llm.vllm_config
        requests = 2 * (self.options.max_num_seqs or config.scheduler_config.max_num_seqs)
        cache = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
        return requests, min(_MOST_IN_FLIGHT, 2 * max(cache, self.max_model_len))

    def _step(self) -> list[Any]:
        try:
            return self._llm.step()
        except Exception as error:
            raise EngineError(f"the engine died: {_one_line(error)}") from error


def _wake_when_dead(core: Any) -> None:
    """Tell whoever waits for the engine that its process is gone.

    vLLM's synchronous client notices a killed engine process, but leaves a caller that is already waiting for its next
    output, or for a worker's reply, waiting for ever.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    resources, outputs = getattr(core, "resources", None), getattr(core, "outputs_queue", None)
    replies = getattr(core, "utility_results", {})
    del core  # the thread must not keep the client alive
    if resources is None or outputs is None:
        return  # the engine lives in this process
    while not resources.engine_dead:
        time.sleep(0.2)
    for reply in list(replies.values()):
        with contextlib.suppress(Exception):  # answered, or given up, in the meantime
            reply.set_exception(EngineDeadError())
    outputs.put_nowait(EngineDeadError())


def _one_line(error: Exception) -> str:
    """An error's text on one line, cut where it gets long; its type where it says nothing."""
    text = " ".join(str(error).split())
    return (text if len(text) <= 400 else f"{text[:400]} ...") or type(error).__name__
