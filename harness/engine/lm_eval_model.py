"""lm-eval's `LM` interface over the engine: used by the runner, and by plain `lm_eval --model gatedeval`.

Its batch calls are thin loops over `stream`, which hands each answer on as it finishes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - lm-eval registers its own models only while its registry is empty: before ours
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from harness.config import ContextSetting, Model, Yarn
from harness.config import Engine as EngineOptions
from harness.data.folder import DataFolder
from harness.engine.encoding import Encoder, generation_request
from harness.engine.engine import Engine
from harness.engine.requests import DEFAULT_ANSWER_TOKENS, Choice, Completion, SampleRequest
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError


@register_model("gatedeval")
class GatedevalLM(TemplateLM):
    """lm-eval model backed by one gatedeval engine.

    `lm_eval --model gatedeval --model_args path=DIR,max_length=4096,rope_theta=1e6,yarn_factor=4,...`: `path` is a
    directory or hub id, `subfolder`, `revision`, `tokenizer` as in a config; `max_length`, `rope_theta`, `yarn_factor`
    with `original_max_position_embeddings` make the context setting; further keys are engine options.

    Raises:
        GatedevalError: an unknown argument, a checkpoint that is refused, a prompt that does not fit.
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
            )
            setting = _setting(max_length, rope_theta, yarn_factor, original_max_position_embeddings)
            engine = Engine(model, [setting], _options(options))
        self.engine = engine
        self.tok = Tokenizer(engine.tokenizer_dir)
        self.tokenizer = self.tok.hf
        self.batch_size = 1

    # --- what lm-eval asks about the model -----------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        """Longest prompt plus answer of the present context setting, in tokens."""
        return self.engine.max_length

    @property
    def max_gen_toks(self) -> int:
        """Answer tokens where a task names no limit."""
        return DEFAULT_ANSWER_TOKENS

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's end-of-text token."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is conditioned on: BOS where there is one, else end-of-text."""
        return self.tok.start_id

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's request cache."""
        return str(self.engine.tokenizer_dir).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render a conversation; one that already begins the assistant's turn is continued, never closed."""
        return self.tok.render(chat_history, add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids as the model is sent them (see `harness.models.tokenizer`)."""
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
        """Log-likelihood of each continuation; a document's requests are asked together, so they share its context."""
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
        """Log-likelihood of whole texts, in windows of the context's length, each token scored once."""
        total = []
        for request in tqdm(requests, disable=disable_tqdm, desc="score"):
            windows = get_rolling_token_windows(
                token_list=self.tok.encode(request.args[0], special=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            total.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs)))
        return total


def _by_document(requests: Sequence[Any]) -> list[list[int]]:
    """Positions of requests, those of one (task, document) together, in order of first appearance."""
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
    known = EngineOptions.__dataclass_fields__
    if unknown := sorted(set(given) - set(known)):
        raise GatedevalError(f"--model_args: unknown {', '.join(unknown)}; engine options are {', '.join(known)}")
    return EngineOptions(**given)


def lm_eval_main() -> None:
    """lm-eval's own command line, with `--model gatedeval` known (importing this module registers it).

    With GATEDEVAL_DATA set, MMLU and GSM8k are read from that folder instead of the hub.
    """
    from lm_eval.__main__ import cli_evaluate

    try:
        if os.environ.get("GATEDEVAL_DATA"):
            from harness.benchmarks.lm_tasks import serve_local_data

            serve_local_data(DataFolder())
        cli_evaluate()
    except GatedevalError as error:
        print(f"gatedeval: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    lm_eval_main()
