"""What commands say: one meaning per option, silence where it is asked for, errors in the order of their cost."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from harness.commands import evaluate
from harness.commands.main import cli
from harness.config import load
from harness.run import hardware, runner
from harness.run import sweep as sweeping
from harness.run.plan_text import render
from harness.text import counted, read_length
from harness.types import GatedevalError
from tasks.ruler import generation
from tests.support.sample_runs import write_run


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


CONFIG = """
name: x
models: [{label: m, path: org/name}]
contexts: [{label: a, max_length: 128K, yarn: {factor: 4, original_max_position_embeddings: 32K}}]
benchmarks: [{ruler: vt, lengths: [4K, 8192, 128k]}]
"""


def test_lengths_in_a_config_are_written_as_in_sweep(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    loaded = load(tmp_path / "c.yaml")
    assert loaded.benchmarks[0].lengths == (4096, 8192, 131072)  # type: ignore[attr-defined]
    assert loaded.contexts[0].max_length == 131072
    again = load(tmp_path / "c.yaml", ["benchmarks.ruler.lengths=[1K]", "contexts.a.max_length=64K"])
    assert (again.benchmarks[0].lengths, again.contexts[0].max_length) == ((1024,), 65536)  # type: ignore[attr-defined]
    (tmp_path / "c.yaml").write_text(CONFIG.replace("8192", "8KB"))
    with pytest.raises(GatedevalError, match=r"c.yaml:5: .*should be a length in tokens.*'8KB'"):
        load(tmp_path / "c.yaml")


def test_read_length() -> None:
    assert [read_length(text) for text in ("4096", "4K", "4k", "1M")] == [4096, 4096, 4096, 1 << 20]
    for text in ("", "K", "4.5K", "0", "-4K", "4KB"):
        with pytest.raises(ValueError, match="should be a length"):
            read_length(text)


def test_one_short_option_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}

    def collect(group: click.Group) -> None:
        for name in group.list_commands(click.Context(group)):
            found = group.get_command(click.Context(group), name)
            if isinstance(found, click.Group):
                collect(found)
            else:
                for option in (p for p in found.params if isinstance(p, click.Option) and not p.hidden):  # type: ignore[union-attr]
                    for short in (o for o in option.opts if not o.startswith("--")):
                        meanings.setdefault(short, set()).add(next(o for o in option.opts if o.startswith("--")))

    assert isinstance(cli, click.Group)
    collect(cli)
    assert meanings["-s"] == {"--set"}
    assert {short: long for short, long in meanings.items() if len(long) > 1} == {}


def test_the_old_short_form_of_style_still_works_and_says_what_to_write(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", n=2)
    old, new = command("table", run, "-s", "tasks"), command("table", run, "--style", "tasks")
    assert (old.exit_code, old.stdout) == (0, new.stdout)
    assert "write --style" in old.stderr
    assert new.stderr == ""


def test_runs_of_a_folder_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command("runs", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "nowhere: no such directory" in done.output
    monkeypatch.chdir(tmp_path)
    done = command("runs")  # somebody's first command
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no run in results yet" in done.stderr


def test_quiet_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SimpleNamespace(results=tmp_path, cluster=None)
    plan = SimpleNamespace(
        check=lambda: None, cells={}, tokens={}, models={}, engines={}, engine=lambda cell: cell.model, config=settings
    )
    monkeypatch.setattr("harness.run.plan.build", lambda config, date: plan)
    tally = SimpleNamespace(answered=1, reused=0, redone=0, rescored=0, relabelled=0, sent_tokens=10, cached_tokens=5)
    monkeypatch.setattr(runner, "run", lambda *a, **k: ("complete", tally))
    monkeypatch.setenv("GATEDEVAL_LOG", "")
    config: Any = SimpleNamespace(probe=None, cluster=None)
    assert evaluate.evaluate(config, tmp_path, quiet=True) == "complete"
    assert capsys.readouterr() == ("", "")
    evaluate.evaluate(config, tmp_path, quiet=False)
    said = capsys.readouterr().err
    assert "complete; 1 sample answered" in said
    assert "50% of 10 prompt tokens came from the prefix cache" in said


def test_a_plan_that_refuses_everything_prints_no_table_of_zeros(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"name: x\nmodels: [{{label: m, path: {tmp_path}}}]\nbenchmarks: [gsm8k]\n")
    done = command("plan", tmp_path / "c.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the plan cannot be run" in done.stderr


def test_one_of_a_thing_is_in_the_singular(tmp_path: Path) -> None:
    assert [counted(n, "task") for n in (0, 1, 2, "1", "1 to 3", "no")] == [
        "0 tasks", "1 task", "2 tasks", "1 task", "1 to 3 tasks", "no tasks",
    ]  # fmt: skip
    plan: Any = SimpleNamespace(
        cells={}, tokens={}, models={}, in_dtype={}, refusals=["x"], config=SimpleNamespace(benchmarks=(), decide=None)
    )
    assert render(plan).splitlines()[-1] == "1 refusal, see below"
    settings = {
        "models": [{"label": "a", "path": "a"}, {"label": "b", "path": "b"}],
        "contexts": [{"label": "8k", "max_length": 8192}],
        "benchmarks": [{"ruler": ["vt"], "lengths": [4096]}, {"mmlu": {"subjects": []}}],
    }
    write_run(tmp_path / "runs" / "r", settings, n=1)
    said = [command("runs", tmp_path / "runs"), command("table", tmp_path / "runs" / "r")]
    said += [command("compare", tmp_path / "runs" / "r"), command("table", tmp_path / "runs" / "r", "--style", "delta")]
    for done in said:
        assert done.exit_code == 0, done.output
        words = done.output.split()
        for number, noun in itertools.pairwise(words):
            assert (number.strip("(±"), noun.rstrip(",;.")) not in {
                ("1", plural) for plural in ("tasks", "samples", "cells", "comparisons", "questions", "lines")
            }, done.output


def test_run_json_names_processor_and_gpus(tmp_path: Path) -> None:
    facts = hardware.hardware()
    assert {"machine", "system", "python", "cpu", "cores", "memory_gib", "gpus"} == facts.keys()
    assert isinstance(facts["cpu"], str)
    assert facts["cores"] >= 1
    json.dumps(facts)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\n")
    assert hardware.cpu_name(tmp_path) == "AMD EPYC 9654"
    (tmp_path / "cpuinfo").write_text("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert "implementer 0x41, part 0xd40" in str(hardware.cpu_name(tmp_path))
    (tmp_path / "meminfo").write_text("MemTotal:       131072000 kB\n")
    assert hardware.memory_gib(tmp_path) == 125.0
    names = "print('NVIDIA H200\\nNVIDIA H200')"
    assert hardware.gpu_names((sys.executable, "-c", names)) == ["NVIDIA H200", "NVIDIA H200"]
    assert hardware.gpu_names((sys.executable, "-c", "print('failed'); raise SystemExit(9)")) == []
    assert hardware.gpu_names(("no-such-command",)) == []


def never(*arguments: Any) -> Any:
    raise AssertionError("the costly step came before the cheap check")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["nosuch"], "RULER has no task 'nosuch'"),
        (["vt", "--profile", "fare"], "expected nvidia or fair"),
        (["vt", "--samples", "-1"], "cannot be negative"),
        (["vt", "--length", "8"], "the answer alone may take"),
    ],
)
def test_ruler_generate_checks_the_request_before_it_loads_a_tokenizer(
    monkeypatch: pytest.MonkeyPatch, changed: list[str], message: str
) -> None:
    monkeypatch.setattr(generation, "load_tokenizer", never)
    done = command("ruler", "generate", *changed[:1], "--tokenizer", "org/name", "--length", "4K", *changed[1:])
    assert done.exit_code == 2
    assert message in done.output


def test_sweep_checks_its_options_before_it_reads_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_native_length", never)
    given = ["org/name", "--rope-theta", "1e6", "--lengths", "4K"]
    for wrong, message in ((["--task", "nosuch"], "nosuch"), (["-s", "engine.nosuch=1"], "nosuch")):
        done = command("sweep", *given, *wrong)
        assert done.exit_code == 2
        assert message in done.output


def test_a_length_that_is_none_is_a_usage_error() -> None:
    done = command("ruler", "generate", "vt", "--tokenizer", "x", "--length", "4KB")
    assert done.exit_code == 2
    assert "'4KB' should be a length in tokens" in done.output
