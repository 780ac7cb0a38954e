"""lm-eval's `LM` interface over the engine, for lm-eval's own command line: `lm_eval --model gatedeval`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - lm-eval registers its own models only while its registry is empty: before ours
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from harness.config import ContextSetting, EngineOptions, Model, Yarn
from harness.engine.encoding import Encoder, generation_request
from harness.engine.engine import Engine
from harness.engine.requests import DEFAULT_ANSWER_TOKENS, Choice, Completion, SampleRequest
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError, GateLayout


@register_model("gatedeval")
class GatedevalLM(TemplateLM):
    """lm-eval model backed by one gatedeval engine.

    `lm_eval --model gatedeval --model_args path=DIR,max_length=4096,rope_theta=1e6,yarn_factor=4,...`: `path` is a
    directory or hub id; `subfolder`, `revision`, `tokenizer` as in a config; `max_length` (tokens), `rope_theta`, and
    `yarn_factor` with `original_max_position_embeddings` are the context setting; further keys are engine options.

    Raises:
        GatedevalError: an argument is unknown, the checkpoint is refused, or a prompt does not fit.
    """

    backend = "causal"

    def __init__(
        self,
        path: str | None = None,
        pretrained: str | None = None,
        subfolder: str | None = None,
        revision: str | None = None,
        tokenizer: str | None = None,
        dtype: str = "auto",
        max_length: int | None = None,
        rope_theta: float | None = None,
        yarn_factor: float | None = None,
        original_max_position_embeddings: int | None = None,
        gate_layout: GateLayout | None = None,
        engine: Engine | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if engine is None:
            if not (path or pretrained):
                raise GatedevalError("lm_eval --model gatedeval needs --model_args path=DIR (or a hub id)")
            model = Model(
                label="model",
                path=str(path or pretrained),
                subfolder=subfolder,
                revision=revision,
                tokenizer=tokenizer,
                dtype=dtype,  # type: ignore[arg-type]
                gate_layout=gate_layout,
            )
            setting = _setting(max_length, rope_theta, yarn_factor, original_max_position_embeddings)
            engine = Engine(model, [setting], _options(options))
            engine.self_check()
        self.engine = engine
        self.tok = Tokenizer(engine.tokenizer_dir)
        self.tokenizer = self.tok.hf
        self.batch_size = 1

    # --- properties that lm-eval reads --------------------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """Longest prompt plus answer under the context setting in force, in tokens."""
        return self.engine.max_length

    @property
    def max_gen_toks(self) -> int:
        """Limit on answer tokens for a task that names none."""
        return DEFAULT_ANSWER_TOKENS

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's end-of-text token."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The context of a text without a context: BOS if the tokenizer has one, else end-of-text."""
        return self.tok.start_id

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name in lm-eval's request cache."""
        return str(self.engine.tokenizer_dir).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation as text. If its last turn is the assistant's, the turn is left open and continued."""
        return self.tok.render(chat_history, add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids as they are sent to the model (see `harness.models.tokenizer`)."""
        return self.tok.encode(string, special=add_special_tokens is not False)

    # --- streaming -----------------------------------------------------------------------------------------------

    def stream(self, samples: Iterable[SampleRequest]) -> Iterator[Completion | Choice]:
        """Answer samples as they come. Answers arrive in the order in which they finish; `key`: the label."""
        engine = self.engine
        encoder = Encoder(self.tok, engine.checkpoint, engine.setting, engine.max_length, engine.model.dtype)
        return engine.answer(encoder.encode(sample) for sample in samples)

    # --- lm-eval's batch calls -----------------------------------------------------------------------------------

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each request's context until a stop string, end of text, or the token limit."""
        samples = (generation_request(str(n), str(n), *request.args) for n, request in enumerate(requests))
        answers: dict[int, str] = {}
        for answer in tqdm(self.stream(samples), total=len(requests), disable=disable_tqdm, desc="generate"):
            assert isinstance(answer, Completion)
            number = int(str(answer.key))
            answers[number] = answer.text
            self.cache_hook.add_partial("generate_until", requests[number].args, answer.text)
        return [answers[number] for number in range(len(requests))]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation. A document's requests form one question, so they share its context."""
        groups = _by_document(requests)
        samples = (
            SampleRequest(id=str(number), label=str(number), options=tuple(requests[i].args for i in group))
            for number, group in enumerate(groups)
        )
        answers: dict[int, tuple[float, bool]] = {}
        for answer in tqdm(self.stream(samples), total=len(groups), disable=disable_tqdm, desc="choose"):
            assert isinstance(answer, Choice)
            group = groups[int(str(answer.key))]
            answers.update(zip(group, zip(answer.logprobs, answer.greedy, strict=True), strict=True))
        return [answers[number] for number in range(len(requests))]

    def _loglikelihood_tokens(self, requests: list[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        scored = self.engine.score((number, ctx, cont) for number, (_, ctx, cont) in enumerate(requests))
        answers = {key: (logprob, greedy) for key, logprob, greedy in scored}
        return [answers[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood (nats) of each text, in windows of `max_length` - 1 tokens; each token is scored once."""
        totals = {n: 0.0 for n, request in enumerate(requests) if not request.args[0]}  # an empty text has no token
        texts = {n: request.args[0] for n, request in enumerate(requests) if request.args[0]}
        samples = (SampleRequest(id=str(n), label=str(n), text=text) for n, text in texts.items())
        for answer in tqdm(self.stream(samples), total=len(texts), disable=disable_tqdm, desc="score"):
            assert isinstance(answer, Choice)
            totals[int(str(answer.key))] = math.fsum(answer.logprobs)
        return [totals[number] for number in range(len(requests))]


def _by_document(requests: Sequence[Any]) -> list[list[int]]:
    """Indices of requests, grouped by (task, document), in the order in which the groups first appear."""
    groups: dict[Hashable, list[int]] = {}
    for number, request in enumerate(requests):
        key = (request.task_name, request.doc_id) if request.doc_id is not None else ("", number)
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _setting(
    max_length: int | None, rope_theta: float | None, yarn_factor: float | None, original: int | None
) -> ContextSetting:
    if (yarn_factor is None) != (original is None):
        raise GatedevalError("yarn_factor and original_max_position_embeddings go together: give both or neither")
    yarn = (
        Yarn(factor=float(yarn_factor), original_max_position_embeddings=int(original))
        if yarn_factor and original
        else None
    )
    return ContextSetting(
        label="lm_eval",
        max_length=int(max_length) if max_length else None,
        rope_theta=float(rope_theta) if rope_theta else None,
        yarn=yarn,
    )


def _options(given: Mapping[str, Any]) -> EngineOptions:
    known = EngineOptions.model_fields
    if unknown := sorted(set(given) - set(known)):
        raise GatedevalError(f"--model_args: unknown {', '.join(unknown)}; engine options are {', '.join(known)}")
    return EngineOptions(**given)
