"""The engine's three verbs and its context settings, on one live engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.config import ContextSetting, Model, Yarn
from harness.engine.engine import Engine
from harness.engine.requests import EngineError, Prompt, Question
from harness.engine.stream import InFlight
from harness.types import GatedevalError
from tests.support.engines import altered
from tests.support.in_process import EAGER, shared_engine

pytestmark = pytest.mark.engine

SHORT = ContextSetting(label="native", max_length=512)
BASE = ContextSetting(label="base 1M", rope_theta=1e6, max_length=2048)
YARN = ContextSetting(
    label="YaRN", rope_theta=1e6, yarn=Yarn(factor=4, original_max_position_embeddings=2048), max_length=8192
)


@pytest.fixture(scope="module")
def checkpoint(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny headwise model whose repository sets a temperature and penalties, which the engine must ignore."""
    copy = altered(tiny / "headwise", tmp_path_factory.mktemp("sampling") / "headwise")
    settings = {"temperature": 1.7, "top_p": 0.3, "repetition_penalty": 3.0, "do_sample": True, "eos_token_id": 0}
    (copy / "generation_config.json").write_text(json.dumps(settings))
    return copy


@pytest.fixture
def engine(checkpoint: Path) -> Engine:
    """The shared engine for this checkpoint, under SHORT."""
    return shared_engine.get(Model(label="m", path=str(checkpoint), dtype="float32"), SHORT, BASE, YARN)


PROMPT = [(7 * i * i + 3 * i) % 4000 + 40 for i in range(300)]


def logprobs(engine: Engine, ids: list[int]) -> np.ndarray:
    options = tuple((tuple(ids), (token,)) for token in range(0, 4096, 8))
    [choice] = engine.choose([Question("q", options)])
    return np.array(choice.logprobs)


def prompt_logprob(engine: Engine, ctx: tuple[int, ...], continuation: tuple[int, ...]) -> float:
    """The same log-likelihood from vLLM's prompt log-probabilities: slow, and what lm-eval's vLLM class does."""
    from vllm import SamplingParams

    engine.vllm.add_request(
        "slow",
        {"prompt_token_ids": [*ctx, *continuation]},
        SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0),
    )
    while True:
        for output in engine.vllm.step():
            if output.finished:
                rows = output.prompt_logprobs[len(ctx) :]
                return sum(row[token].logprob for row, token in zip(rows, continuation, strict=True))


def test_choose_equals_prompt_logprobs(engine: Engine) -> None:
    ctx = tuple(PROMPT[:50])
    options = ((5,), (5, 9), (5, 9, 11), (5, 12, 400), (0,), (0, 0), (77, 5, 9))  # prefixes, shared starts, token 0
    [choice] = engine.choose([Question("q", tuple((ctx, o) for o in options))])
    slow = [prompt_logprob(engine, ctx, option) for option in options]
    assert np.abs(np.array(choice.logprobs) - slow).max() <= 1e-4


def test_choose_with_different_contexts(engine: Engine) -> None:
    pairs = ((tuple(PROMPT[:20]), (4, 8)), (tuple(PROMPT[:21]), (4, 8)), (tuple(PROMPT[5:40]), (3,)))
    [choice] = engine.choose([Question("q", pairs)])
    assert np.abs(np.array(choice.logprobs) - [prompt_logprob(engine, c, t) for c, t in pairs]).max() <= 1e-4


def test_token_zero_beside_a_longer_list_of_options(engine: Engine) -> None:
    """vLLM pads the shorter lists of a batch with token 0 at -inf. The real token 0 must keep its log-probability."""
    ctx = tuple(PROMPT[:30])
    many = Question("many", tuple((ctx, (token,)) for token in range(100, 200)))
    few = Question("few", ((ctx, (0,)), (ctx, (1,))))
    answers = {c.key: c for c in engine.choose([many, few])}
    assert answers["few"].logprobs[0] == pytest.approx(prompt_logprob(engine, ctx, (0,)), abs=1e-4)
    assert all(math.isfinite(v) for c in answers.values() for v in c.logprobs)


def test_greedy_flag_follows_generation(engine: Engine) -> None:
    ctx = tuple(PROMPT[:40])
    [answer] = engine.generate([Prompt("g", ctx, 4)])
    best = answer.token_ids[:3]
    [choice] = engine.choose([Question("q", ((ctx, best), (ctx, (best[0], best[1], (best[2] + 1) % 4096))))])
    assert choice.greedy == (True, False)


def test_score_is_a_question_of_one_option(engine: Engine) -> None:
    ctx, continuation = tuple(PROMPT[:25]), tuple(PROMPT[25:30])
    [(key, value, _)] = engine.score([("s", ctx, continuation)])
    assert key == "s"
    assert value == pytest.approx(prompt_logprob(engine, ctx, continuation), abs=1e-4)


def test_generation_config_of_the_repository_is_ignored(engine: Engine) -> None:
    prompts = [Prompt(i, PROMPT[:60], 24) for i in range(3)]
    answers = {a.token_ids for a in engine.generate(prompts)}
    assert len(answers) == 1  # temperature 1.7 would differ
    tokens = next(iter(answers))
    ids = list(PROMPT[:60])
    for token in tokens[:6]:  # greedy by the raw log-probabilities: no repetition penalty, no top_p
        [choice] = engine.choose([Question("q", tuple((tuple(ids), (t,)) for t in range(4096)))])
        assert int(np.argmax(choice.logprobs)) == token
        ids.append(token)


def test_one_token_too_many_is_an_error_that_counts_it(engine: Engine) -> None:
    [fits] = engine.generate([Prompt("fits", (PROMPT * 2)[:500], 12)])
    assert fits.tokens <= 12
    with pytest.raises(GatedevalError, match=r"501 prompt tokens \+ 12 for the answer = 513, 1 over the 512"):
        list(engine.generate([Prompt("q", (PROMPT * 2)[:501], 12)]))
    with pytest.raises(GatedevalError, match="1 over the 512"):
        list(engine.choose([Question("q", ((tuple((PROMPT * 2)[:512]), (1,)),))]))
    with pytest.raises(GatedevalError, match="the prompt is empty"):
        list(engine.generate([Prompt("q", [], 5)]))
    [after] = engine.generate([Prompt("after", PROMPT[:10], 2)])  # a refused request leaves the engine usable
    assert after.tokens == 2


def test_a_request_that_is_not_ready_does_not_block_the_others(engine: Engine) -> None:
    """None among the requests: the engine continues with those it has, then asks again."""
    first, second = Prompt("first", PROMPT[:40], 3), Prompt("second", PROMPT[:50], 3)
    answered: list[object] = []

    def requests() -> Iterator[Prompt | None]:
        yield None
        yield first
        while not answered:
            yield None
        yield second

    for answer in engine.answer(requests()):
        answered.append(answer.key)  # noqa: PERF401 - the generator looks at it
    assert answered == ["first", "second"]


def test_requests_of_a_question(engine: Engine) -> None:
    """Four single-token options over one context, as in MMLU, are one request."""
    ctx = tuple(PROMPT[:200])
    [choice] = engine.choose([Question("mmlu", tuple((ctx, (token,)) for token in (65, 66, 67, 68)))])
    assert choice.sent_tokens == 200
    [choice] = engine.choose([Question("longer", ((ctx, (5, 6)), (ctx, (5, 7)), (ctx, (8, 9))))])
    assert choice.sent_tokens == 200 + 201 + 201  # the context, then one node for each first token


def test_prompt_tokens_in_flight_are_bounded(engine: Engine) -> None:
    """The engine takes requests as it has room; it does not collect a list of all prompts first."""
    taken = 0

    def requests() -> Iterator[Prompt]:
        nonlocal taken
        for number in range(40):
            taken += 1
            yield Prompt(number, PROMPT[:100], 1)

    usual = engine.in_flight
    engine.in_flight = InFlight(requests=1000, prompt_tokens=450)
    try:
        answers = engine.generate(requests())
        next(answers)
        assert taken <= 6 + 5  # at most five in flight, and more as these finish
        assert 1 + len(list(answers)) == taken == 40
    finally:
        engine.in_flight = usual
    assert usual.requests >= 2
    assert engine.max_model_len <= usual.prompt_tokens <= 8_000_000


@pytest.mark.extended
def test_deepest_first_finds_the_shared_haystack_in_the_cache(engine: Engine, checkpoint: Path, shared: Path) -> None:
    """niah_single_2: at most 60 % of the prompt tokens are computed, and answers do not depend on the order."""
    from harness.run.order import deepest_first
    from tasks import ruler

    engine.set_context(YARN)
    tokenizer = ruler.load_tokenizer(checkpoint)
    samples = ruler.generate("niah_single_2", tokenizer=tokenizer, length=4096, samples=16, data=shared / "data")
    prompts = [Prompt(s.row, tokenizer.encode(s.prompt), 8) for s in samples]
    order = deepest_first([p.ids for p in prompts])
    assert order is not None
    assert order != list(range(16))
    answers, computed = [], []
    for these in ([prompts[i] for i in order], prompts):
        engine.set_context(YARN)  # empties the prefix cache
        done = {a.key: a for a in engine.generate(these)}
        answers.append({key: a.token_ids for key, a in done.items()})
        computed.append(sum(a.sent_tokens - a.cached_tokens for a in done.values()))
    total = sum(len(p.ids) for p in prompts)
    assert total == sum(a.sent_tokens for a in done.values())
    assert computed[0] <= 0.6 * total
    assert computed[0] <= computed[1]
    assert answers[0] == answers[1]


def test_finish_reason_of_an_answer_that_was_cut(engine: Engine) -> None:
    [cut] = engine.generate([Prompt("q", PROMPT[:33], 5)])
    assert (cut.finish_reason, cut.tokens) == ("length", 5)
    text = engine.vllm.get_tokenizer().decode(list(cut.token_ids))
    [stopped] = engine.generate([Prompt("q", PROMPT[:33], 50, stop=(text[3:6],))])
    assert stopped.finish_reason == "stop"
    assert text[3:6] not in stopped.text
    assert stopped.text == text[:3]


def test_stop_ids_are_those_of_vllm_and_are_sent_by_name(engine: Engine) -> None:
    """vLLM's own rule gives the same ids; an answer ends before the first of the ids that its prompt names."""
    processor = engine.vllm.input_processor
    own = processor.generation_config_fields.get("eos_token_id")
    named = set(own) if isinstance(own, list) else {own}
    assert set(engine.stop_ids) == named | {processor.renderer.get_eos_token_id()}

    [free] = engine.generate([Prompt("free", PROMPT[:33], 12, stop_ids=())])
    assert (free.finish_reason, free.tokens) == ("length", 12)
    end = free.token_ids[5]
    first = free.token_ids.index(end)
    [ended] = engine.generate([Prompt("ended", PROMPT[:33], 12, stop_ids=(0, end))])
    assert (ended.finish_reason, ended.token_ids) == ("stop", free.token_ids[: first + 1])
    assert ended.text == engine.vllm.get_tokenizer().decode(list(free.token_ids[:first]))


def test_context_settings_swap_exactly(engine: Engine) -> None:
    starts = Engine.starts
    native = logprobs(engine, PROMPT)
    engine.set_context(BASE)
    base = logprobs(engine, PROMPT)
    engine.set_context(YARN)
    yarn = logprobs(engine, PROMPT)
    engine.set_context(SHORT)
    assert np.array_equal(logprobs(engine, PROMPT), native)  # bit for bit
    for one, other in ((native, base), (base, yarn), (native, yarn)):
        assert np.abs(one - other).max() > 0.1
    assert Engine.starts == starts


def test_a_fresh_engine_gives_the_same_bits(engine: Engine, checkpoint: Path) -> None:
    engine.set_context(YARN)
    swapped = logprobs(engine, PROMPT)
    fresh = shared_engine.get(Model(label="m", path=str(checkpoint), dtype="float32"), YARN)
    assert np.array_equal(logprobs(fresh, PROMPT), swapped)
    assert fresh.facts["rope_deviation"] < 1e-2  # vLLM's own YaRN table, before ours replaced it


def test_yarn_reaches_beyond_the_original_length(engine: Engine) -> None:
    """The engine takes 6,000 tokens, and there YaRN changes the log-probabilities."""
    assert engine.facts["max_model_len"] >= 8192
    assert engine.facts["rope_tables"][0][0] >= 8192
    long = (PROMPT * 20)[:6000]
    engine.set_context(YARN)
    assert engine.max_length == 8192
    with_yarn = logprobs(engine, long)
    engine.set_context(ContextSetting(label="same length, no YaRN", rope_theta=1e6, max_length=8192))
    assert np.abs(with_yarn - logprobs(engine, long)).max() > 0.1


def test_a_longer_setting_than_planned_is_refused(engine: Engine) -> None:
    with pytest.raises(GatedevalError, match="needs 16384 tokens, the engine was started for 8192"):
        engine.set_context(ContextSetting(label="long", rope_theta=1e6, max_length=16384))


def test_zeroed_gate_changes_the_logits(engine: Engine, checkpoint: Path, tmp_path: Path) -> None:
    """This fails for a plugin that loads the gate but does not apply it."""
    from harness.models.checkpoint import inspect

    layout = inspect(checkpoint).layout
    assert layout is not None

    def zero(tensors: dict) -> dict:
        for name, tensor in tensors.items():
            if "q_proj" in name:
                tensor[layout.gate_rows] = 0
        return tensors

    live = logprobs(engine, PROMPT)
    dead = altered(checkpoint, tmp_path / "dead", zero)
    other = shared_engine.get(Model(label="m", path=str(dead), dtype="float32"), SHORT)
    assert np.abs(logprobs(other, PROMPT) - live).max() > 0.1


@pytest.mark.slow
def test_without_the_plugin_the_engine_refuses(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_engine.close()  # the next one runs in a process of its own
    monkeypatch.setenv("VLLM_PLUGINS", "")
    import vllm.plugins

    monkeypatch.setattr(vllm.plugins, "plugins_loaded", True)  # this process has loaded it; its children have not
    with pytest.raises(EngineError, match=r"plugin|GatedQwen3ForCausalLM|did not start"):
        Engine(Model(label="m", path=str(checkpoint)), [SHORT], EAGER).close()
