"""Odd tokenizers: `check`, `plan` and `run` refuse one with the same words, or all of its prompts are as counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.config import Config, to_dict
from harness.engine.requests import Prompt, SampleRequest
from harness.models.tokenizer import Tokenizer
from harness.run.plan import Plan, build
from harness.run.producing import CellFailed
from harness.types import GatedevalError
from tests.checkpoints import tokenizers as odd
from tests.support.odd_plans import Make, accepted_plans, config, events, maker, requests_of


@pytest.fixture(scope="module")
def make(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    return maker(tiny, tmp_path_factory.mktemp("odd"))


def refusals_of_commands(folder: Path, made: Config, tmp_path: Path, words: str) -> dict[str, str]:
    """Command -> its one line with `words` about a folder that it refuses with exit code 2."""
    from harness.commands.main import cli

    file = tmp_path / "odd.yaml"
    file.write_text(json.dumps(to_dict(made), default=str))  # JSON is YAML
    commands = {
        "check": ["check", str(folder)],
        "plan": ["plan", str(file)],
        "run": ["run", str(file), "-o", str(tmp_path / "out")],
    }
    said = {}
    for name, arguments in commands.items():
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2, (name, done.output, done.exception)
        lines = done.output.splitlines()
        [said[name]] = [line for line in lines if words in line]
    for start in ("gatedeval: ", "the plan cannot be run: ", "  - "):
        said = {name: line.removeprefix(start) for name, line in said.items()}
    return said


@pytest.mark.parametrize("name", [name for name, (_, words) in odd.ODD.items() if words])
def test_check_plan_and_run_refuse_a_broken_tokenizer_alike(
    make: Make, shared: Path, tmp_path: Path, name: str
) -> None:
    folder, words = make(name), odd.ODD[name][1]
    said = refusals_of_commands(folder, config(folder, shared), tmp_path, str(words))
    assert said["check"] == said["plan"] == said["run"]


@pytest.mark.parametrize("name", [name for name, (_, words) in odd.ODD.items() if not words])
def test_what_is_counted_is_what_is_sent(make: Make, shared: Path, name: str) -> None:
    """Length, special tokens included; one BOS or none, as transformers has it; never an EOS behind a prompt."""
    from transformers import AutoTokenizer

    folder = make(name)
    chat = "chat_template" in (folder / "tokenizer_config.json").read_text()
    plan = build(config(folder, shared, chat_template=chat))
    plan.check()
    theirs = AutoTokenizer.from_pretrained(str(folder))
    alone, framed = theirs("a", add_special_tokens=False)["input_ids"], theirs("a")["input_ids"]
    bos = framed[: framed.index(alone[0])]
    sent = 0
    for event in events(plan):
        assert not isinstance(event, CellFailed), event
        if isinstance(event, SampleRequest):
            assert isinstance(event.request, Prompt)
            ids, sent = list(event.request.ids), sent + 1
            assert len(ids) + event.max_tokens <= 1200
            assert event.extra["ruler"]["prompt_tokens"] == len(ids)
            if not chat:
                assert ids[: len(bos)] == bos
                assert theirs.decode(ids[len(bos) :]).startswith(event.excerpt["head"][:40])
            assert ids[-1] != 0 or not bos
    assert sent == 8


def test_qwens_own_tokenizer_is_admitted_without_importing_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing it takes seconds of every plan; another pattern, or none of Qwen's parts, is compared as usual."""
    from harness.models.admission import _check_loaders_agree
    from tests.support import tokenizers as made

    def write(name: str, kind: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        kind.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
        return folder

    qwen, other = write("qwen", made.qwen()), write("other", made.gpt2())
    with pytest.raises(GatedevalError, match="is not the tokenizer that Qwen2Tokenizer makes of it"):
        _check_loaders_agree(other)
    monkeypatch.setattr(Tokenizer, "hf", property(lambda self: pytest.fail("transformers was asked")))
    _check_loaders_agree(qwen)


# ---------------------------------------------------------------------------------------------- templates and thinking


def with_template(tiny: Path, folder: Path, template: Any) -> Path:
    odd.roomy(tiny / "baseline", folder)
    odd.settings(chat_template=template)(folder)
    return folder


MMLU = {"mmlu": {"subjects": ["anatomy"], "shots": 0, "samples": 2}}
GSM8K = {"gsm8k": {"shots": 1, "samples": 2}}
LONG = [{"label": "native", "max_length": 2048}]


@pytest.mark.parametrize(
    ("template", "benchmark", "words"),
    [
        (odd.NO_SYSTEM, MMLU, "cannot render a conversation of system, user (TemplateError: no system role)"),
        ("{% for m in", MMLU, "cannot render a conversation of system, user (TemplateSyntaxError"),
        ("{{ nothing.at.all }}", GSM8K, "cannot render a conversation of user, assistant (UndefinedError"),
        ([{"name": "a", "template": odd.PLAIN}, {"name": "b", "template": odd.PLAIN}], GSM8K, "templates (a, b)"),
        (odd.ALWAYS_THINKING, MMLU, "opens <think> although thinking is off"),
        (odd.ALWAYS_THINKING, {"ruler": ["fwe"], "lengths": [512], "samples": 1}, "opens <think>"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(
    tiny: Path, shared: Path, tmp_path: Path, template: Any, benchmark: dict[str, Any], words: str
) -> None:
    folder = with_template(tiny, tmp_path / "m", template)
    made = config(folder, shared, chat_template=True, contexts=LONG, benchmarks=[benchmark])
    assert [r for r in build(made).refusals if words not in r] == []
    from harness.commands.main import cli

    file = tmp_path / "c.yaml"
    file.write_text(json.dumps(to_dict(made), default=str))
    for command in (["plan", str(file)], ["run", str(file), "-o", str(tmp_path / "out")]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 2
        assert done.output.count(words) == 1


@pytest.mark.parametrize("template", [odd.CHATML, odd.PLAIN, odd.TRIMMED, odd.GLUED, odd.SWITCHED])
@pytest.mark.parametrize("prefix", ["append", "drop"])
def test_prompts_in_a_template_fill_their_length_and_never_exceed_it(
    tiny: Path, shared: Path, tmp_path: Path, template: str, prefix: str
) -> None:
    folder = with_template(tiny, tmp_path / "m", template)
    ruler = {"ruler": ["niah_single_2", "vt", "qa_1"], "lengths": [2048], "samples": 4, "answer_prefix": prefix}
    made = build(config(folder, shared, chat_template=True, contexts=LONG, benchmarks=[{**ruler, "profile": "fair"}]))
    made.check()
    slack = []
    for event in events(made):
        assert not isinstance(event, CellFailed), event
        if isinstance(event, SampleRequest):
            slack.append(2048 - event.prompt_tokens - event.max_tokens)
    assert min(slack) >= 0
    assert min(slack) < 64


def test_thinking_has_a_budget_and_a_place(tiny: Path, shared: Path, tmp_path: Path) -> None:
    """Combinations that cannot be right are refused; others leave room for the thought inside the length."""
    folder = with_template(tiny, tmp_path / "m", odd.SWITCHED)
    ruler = {"ruler": ["niah_single_1"], "lengths": [1024], "samples": 2}

    def planned(benchmark: dict[str, Any], **more: Any) -> Plan:
        facts = {"chat_template": True, "thinking": True, "contexts": LONG, "benchmarks": [benchmark], **more}
        return build(config(folder, shared, **facts))

    def refusal(benchmark: dict[str, Any], **more: Any) -> str:
        with pytest.raises(GatedevalError) as caught:
            planned(benchmark, **more).check()
        return str(caught.value)

    assert "set `answer_prefix: drop`" in refusal(ruler, thinking_tokens=200)
    dropped = {**ruler, "answer_prefix": "drop"}
    assert "say with `thinking_tokens`" in refusal(dropped)
    assert "say with `thinking_tokens`" in refusal(GSM8K)
    assert "the model cannot think" in refusal(MMLU, thinking_tokens=200)
    requests = [e for e in events(planned(dropped, thinking_tokens=200)) if isinstance(e, SampleRequest)]
    for event in requests:
        assert isinstance(event.request, Prompt)
        assert event.request.max_tokens == 128 + 200
        assert len(event.request.ids) + 328 <= 1024
        assert event.thought_opened
    [first, _] = [e for e in events(planned(GSM8K, thinking_tokens=200)) if isinstance(e, SampleRequest)]
    assert isinstance(first.request, Prompt)
    assert first.stop
    assert first.request.stop == (), "a thought may contain a stop string"


def test_an_added_token_across_question_and_option_is_found_in_the_plan(
    tiny: Path, shared: Path, tmp_path: Path
) -> None:
    folder = odd.roomy(tiny / "baseline", tmp_path / "m")
    odd.added(": B")(folder)
    made = config(folder, shared, contexts=LONG, benchmarks=[MMLU])
    assert "option ' B' has no token of its own" in build(made).refusals[0]


def test_a_tokenizer_of_mistral_common_alone_is_read(tmp_path: Path) -> None:
    """Without a tokenizer.json: BOS as mistral-common has it, text that looks like a special token stays text."""
    odd.tekken_only(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode("Hello <s> world [INST]\n\nQ: ok?")
    assert tokenizer.prefix_ids == (1,)
    assert ids.count(1) == 1
    assert tokenizer.decode(ids) == "Hello <s> world [INST]\n\nQ: ok?"
    assert tokenizer.count("Hello <s> world [INST]\n\nQ: ok?") == len(ids) - 1
    from tasks.ruler import generate

    for sample in generate("fwe", tokenizer=tokenizer, length=600, samples=2, reserved=1):
        assert len(tokenizer.encode(sample.prompt)) == sample.validity.prompt_tokens <= 550


# ------------------------------------------------------------------------------------------------------- random plans


def test_random_plans_that_are_accepted_send_all_their_samples(make: Make, shared: Path, tmp_path: Path) -> None:
    for plan in accepted_plans(make, shared, tmp_path, wanted=3, seed=1):
        assert sum(1 for _ in requests_of(plan)) == sum(plan.cells.values())
