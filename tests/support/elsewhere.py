"""A model measured elsewhere: plain torch behind lm-eval's own interface, and lm-eval's own files of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from harness.engine.encoding import generation_request
from harness.models.reference import load
from harness.models.tokenizer import load_tokenizer


class PlainTorch(LM):
    """A checkpoint as a plain torch model (`harness.models.reference`), for lm-eval."""

    def __init__(self, path: Path, window: int = 2048) -> None:
        """`window`: tokens that the model reads at once where a whole text is scored (lm-eval's `max_length`)."""
        super().__init__()
        self.model, self.tokenizer, self.window = load(path), load_tokenizer(path), window

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Log-likelihoods (nats) of continuations."""
        found = []
        for context, continuation in (r.args for r in requests):
            start, ids = self.tokenizer.encode(context), self.tokenizer.encode(context + continuation)
            with torch.inference_mode():
                logits = self.model(torch.tensor([ids]))[0].log_softmax(-1)
            rows = [logits[at - 1] for at in range(len(start), len(ids))]
            answers = ids[len(start) :]
            found.append(
                (
                    sum(float(row[token]) for row, token in zip(rows, answers, strict=True)),
                    all(int(row.argmax()) == token for row, token in zip(rows, answers, strict=True)),
                )
            )
        return found

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Greedy answers, cut at the first stop string."""
        found = []
        for prompt, settings in (r.args for r in requests):
            asked = generation_request("0", "elsewhere", prompt, settings)
            end = self.tokenizer.hf.eos_token_id
            ids = self.model.generate(
                self.tokenizer.encode(prompt), asked.max_tokens, stop=[] if end is None else [end]
            )
            text = self.tokenizer.decode(ids)
            found.append(min((text.split(stop)[0] for stop in asked.stop), key=len, default=text))
        return found

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Log-likelihood (nats) of whole texts, in lm-eval's own windows."""
        return [self._text(request.args[0]) for request in requests]

    def _text(self, text: str) -> float:
        ids = self.tokenizer.encode(text, special=False)
        total = 0.0
        for window in get_rolling_token_windows(ids, self.tokenizer.start_id, self.window, 1):
            context, continuation = make_disjoint_window(window)
            with torch.inference_mode():
                logits = self.model(torch.tensor([[*context, *continuation[:-1]]]))[0].log_softmax(-1)
            rows = logits[-len(continuation) :]
            total += sum(float(row[token]) for row, token in zip(rows, continuation, strict=True))
        return total


def write_lm_eval_results(model: LM, tasks: list[Any], folder: Path, limit: int | None = None, **more: Any) -> Path:
    """Evaluate as `lm_eval --log_samples --output_path FOLDER` does; returns the folder with lm-eval's files."""
    tracker = EvaluationTracker(output_path=str(folder))
    results = simple_evaluate(
        model=model, tasks=tasks, limit=limit, bootstrap_iters=0, log_samples=True, evaluation_tracker=tracker, **more
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return folder
