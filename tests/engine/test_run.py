"""`gatedeval run` on tiny models as a user runs it: killed and resumed, run again, changed, with a dying engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.models.tokenizer import Tokenizer
from harness.store import Store
from tests.support import ROOT
from tests.support.in_process import gatedeval

pytestmark = pytest.mark.engine

CONFIG = """
name: small
models:
  - {label: base line, path: tiny/baseline, dtype: float32}
  - {label: gate, path: tiny/headwise, dtype: float32}
contexts:
  - {label: native, max_length: 1024}
  - {label: YaRN, yarn: {factor: 2, original_max_position_embeddings: 1024}, max_length: 2048}
benchmarks:
  - {ruler: [niah_single_1, fwe], lengths: [512, 2048], samples: 2}
engine: {enforce_eager: true}
caption: "random weights"
"""


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    (root / "tiny").symlink_to(tiny)
    (root / "small.yaml").write_text(CONFIG)
    return root


def command(*arguments: str) -> list[str]:
    """The command line of `gatedeval`, for a process of its own."""
    return [sys.executable, str(ROOT / "cli.py"), *arguments]


def own_process(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`gatedeval` in a process of its own."""
    return subprocess.run(
        command(*arguments), cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def until_first_sample(run: Path, process: subprocess.Popen[Any]) -> Path:
    """Wait until a running process has stored a sample, or has ended; returns the folder of samples."""
    samples, deadline = run / "samples", time.monotonic() + 900
    while not list(samples.glob("*.jsonl")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    return samples


@pytest.fixture(scope="module")
def finished(folder: Path) -> subprocess.CompletedProcess[str]:
    """A complete run."""
    return gatedeval("run", "small.yaml", cwd=folder)


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((folder / "results/small/samples").glob("*.jsonl")):
        yield from (json.loads(line) for line in file.read_text().splitlines())


def test_every_sample_is_stored_once(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    assert finished.returncode == 0, finished.stderr[-3000:]
    check_complete(Store.read(folder / "results/small"))


def check_complete(store: Store) -> None:
    assert store.manifest["state"] == "complete"
    assert len(store.cells) == 2 * (2 + 4)  # the 2,048 only where the context reaches
    for cell in store.cells:
        assert [s.id for s in store.samples(cell)] == ["0", "1"]


@pytest.mark.extended
def test_the_same_command_completes_a_run_that_was_killed(folder: Path) -> None:
    """Killed with SIGKILL in the middle of its first model."""
    process = subprocess.Popen(
        command("run", "small.yaml", "-o", "killed"),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    samples = until_first_sample(folder / "killed", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = sum(len(file.read_bytes().splitlines()) for file in samples.glob("*.jsonl"))
    assert 1 <= kept < 12
    again = own_process(folder, "run", "small.yaml", "-o", "killed")
    assert again.returncode == 0, again.stderr[-3000:]
    assert "found finished" in again.stderr
    check_complete(Store.read(folder / "killed"))


def test_the_table_defines_its_rows_by_what_ran(finished: subprocess.CompletedProcess[str]) -> None:
    text = " ".join(finished.stdout.split())
    assert "Context native: the checkpoint's own rotary encoding: RoPE base " in text
    assert "; at most 1,024 tokens of prompt and answer." in text
    assert "YaRN factor 2 over 1,024 original tokens; at most 2,048 tokens of prompt and answer." in text
    assert re.search(r"Model gate: headwise gate; [\d,]+ parameters; float32\.", text)
    assert re.search(r"Hardware: .+; vLLM \d", text)


def test_choices_for_the_table_ask_nothing_again(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    """The section `table` is in no sample's hash; the run stores it, and a later table uses it."""
    choices = ("-s", "table.digits=1", "-s", "table.rename={gate: SDPA gate}", "-s", "table.lengths=[512]")
    again = gatedeval("run", "small.yaml", *choices, cwd=folder)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "0 samples answered, 24 found finished" in again.stderr
    assert "| SDPA gate " in again.stdout
    assert "RULER 2/13 2K" not in again.stdout
    assert gatedeval("table", "results/small", cwd=folder).stdout == again.stdout
    gatedeval("run", "small.yaml", cwd=folder)
    assert gatedeval("table", "results/small", cwd=folder).stdout == gatedeval("run", "small.yaml", cwd=folder).stdout


def test_stdout_is_the_table_alone(finished: subprocess.CompletedProcess[str]) -> None:
    first, *_ = finished.stdout.splitlines()
    assert first.startswith("| model")
    assert "random weights" in finished.stdout
    assert not re.search(r"vLLM (?!\d)|Triton|NUMA|WARNING|ERROR", finished.stdout), "what engines print is no data"
    row = next(x for x in finished.stdout.splitlines() if x.startswith("| base line") and "native" in x)
    assert row.rstrip(" |").endswith("\u2013")


def test_every_sample_records_its_prompt_and_how_its_answer_ended(
    folder: Path, finished: subprocess.CompletedProcess[str]
) -> None:
    for line in lines(folder):
        budget = {"niah_single_1": 128, "fwe": 50}
        assert line["finish_reason"] in ("stop", "length")
        assert len(line["hash"]) == 32
        validity = line["extra"]["ruler"]
        assert validity["evidence_present"]
        assert validity["prompt_tokens"] == line["prompt_tokens"]
        assert line["prompt_tokens"] + validity["answer_tokens"] <= validity["length"] + validity["overshoot"]
        assert validity["answer_tokens"] in budget.values()
        assert 0 <= line["scores"]["score"] <= 1
        assert 0 <= line["extra"]["cached_tokens"] < line["prompt_tokens"]
        assert line["references"]


def test_the_manifest_records_models_and_engines(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    manifest = json.loads((folder / "results/small/run.json").read_text())
    assert manifest["versions"]["lm-eval"] == "0.4.13"
    assert manifest["config"]["benchmarks"][0]["lengths"] == [512, 2048]
    gate = manifest["models"]["gate"]
    assert gate["gate"] == "headwise"
    assert gate["engine"]["model_class"] == "GatedQwen3ForCausalLM"
    assert gate["engine"]["max_model_len"] >= 2048
    assert gate["engine"]["parameters"] == gate["parameters"], "all stored weights, linear layers included"
    sent = sum(line["prompt_tokens"] for line in lines(folder))
    assert 0 <= gate["engine"]["cached_tokens"] < gate["engine"]["prompt_tokens"] <= sent
    assert manifest["models"]["base line"]["fingerprint"] != gate["fingerprint"]
    assert manifest["sampling"]["temperature"] == 0.0


def test_the_same_command_again_sends_nothing_and_starts_no_engine(
    folder: Path, finished: subprocess.CompletedProcess[str]
) -> None:
    again = gatedeval("run", "small.yaml", cwd=folder)
    assert again.returncode == 0
    assert "0 samples answered, 24 found finished" in again.stderr
    assert "starting vLLM" not in again.stderr
    assert again.stdout == finished.stdout


def test_more_samples_and_other_throughput_options_send_only_new_samples(
    folder: Path, finished: subprocess.CompletedProcess[str]
) -> None:
    first = {(line["hash"], line["response"]) for line in lines(folder)}
    more = gatedeval(
        "run", "small.yaml", "-s", "benchmarks.0.samples=3", "-s", "engine.max_num_seqs=2", cwd=folder)  # fmt: skip
    assert more.returncode == 0, more.stderr[-2000:]
    assert "12 samples answered, 24 found finished" in more.stderr
    assert first <= {(line["hash"], line["response"]) for line in lines(folder)}


def test_another_rope_base_needs_new_answers(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    changed = gatedeval(
        "run", "small.yaml", "-s", "contexts.1.rope_theta=500000", "-s", "benchmarks.0.samples=1",
        "-s", "benchmarks.0.lengths=[512]", cwd=folder)  # fmt: skip
    assert changed.returncode == 0, changed.stderr[-2000:]
    assert "4 samples answered, 4 found finished, 4 of them done again" in changed.stderr


@pytest.mark.slow
def test_an_end_of_text_id_added_to_generation_config_asks_again(folder: Path, tiny: Path) -> None:
    """The answers that vLLM would now end earlier are not reused; those among options are."""
    shutil.copytree(tiny / "baseline", folder / "ended")
    config = "name: ended\nmodels: [{label: m, path: ended, dtype: float32}]\n"
    config += "contexts: [{label: native, max_length: 1024}]\n"
    config += "benchmarks: [{ruler: [niah_single_1], lengths: [512], samples: 3}]\nengine: {enforce_eager: true}\n"
    (folder / "ended.yaml").write_text(config)

    def answers(run: str) -> dict[str, tuple[str, int, str]]:
        store = Store.read(folder / run)
        [cell] = store.cells
        return {s.id: (s.response, s.response_tokens, s.finish_reason) for s in store.samples(cell)}

    assert gatedeval("run", "ended.yaml", "-o", "ended-run", cwd=folder).returncode == 0
    before = answers("ended-run")
    words = [Tokenizer(folder / "ended").encode(text, special=False) for text, _, _ in before.values()]
    (folder / "ended/generation_config.json").write_text(json.dumps({"eos_token_id": [0, words[0][3], words[1][5]]}))
    again = gatedeval("run", "ended.yaml", "-o", "ended-run", cwd=folder)
    assert "3 samples answered, 0 found finished, 3 of them done again" in again.stderr
    assert gatedeval("run", "ended.yaml", "-o", "ended-fresh", cwd=folder).returncode == 0
    assert answers("ended-run") == answers("ended-fresh") != before
    assert any(reason == "stop" and tokens < 128 for _, tokens, reason in answers("ended-run").values())
    manifest = Store.read(folder / "ended-run").manifest
    assert manifest["models"]["m"]["stop_ids"] == sorted({0, words[0][3], words[1][5]})


def test_table_in_every_format(folder: Path, finished: subprocess.CompletedProcess[str]) -> None:
    tidy = gatedeval("table", "results/small", "-f", "csv", cwd=folder).stdout.splitlines()
    assert tidy[0].startswith("model,context,benchmark,task,length,samples,score")
    assert json.loads(gatedeval("table", "results/small", "-f", "json", cwd=folder).stdout)
    assert "\\toprule" in gatedeval("table", "results/small", "-f", "latex", cwd=folder).stdout
    assert "niah_single_1" in gatedeval("table", "results/small", "--style", "tasks", cwd=folder).stdout


def test_bad_input_is_one_message_and_exit_code_2(folder: Path) -> None:
    for arguments, message in (
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["table", "nowhere"], "no run at nowhere"),
        (["check", "tiny"], "checkpoints below it"),
        (["run", "small.yaml", "-s", "benchmarks.0.lengths=[4096]"], "4096"),
        (["run", "small.yaml", "-s", "benchmarks.0.ruler=[qa_1]", "--data", "tiny"], "squad"),
        (["plan", "small.yaml", "-s", "benchmarks.0.lengths=[60]"], "at least"),
    ):
        result = gatedeval(*arguments, cwd=folder)
        assert result.returncode == 2, (arguments, result.stderr[-500:])
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_dead_engine_fails_its_cells_and_another_runs_the_rest(folder: Path) -> None:
    """The engine process is killed while it answers: its cells fail by name, a new engine starts, exit code 1."""
    import psutil

    arguments = [
        "run",
        "small.yaml",
        "-o",
        "died",
        "-s",
        "benchmarks.0.samples=40",
        "-s",
        "models=[{label: gate, path: tiny/headwise}]",
    ]
    process = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_first_sample(folder / "died", process)
    for child in psutil.Process(process.pid).children(recursive=True):
        if "EngineCore" in " ".join(child.cmdline() or [child.name()]):
            child.kill()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 1, err[-3000:]
    assert "the engine died" in err
    store = Store.read(folder / "died")
    assert store.manifest["state"] == "incomplete"
    assert {key.split("__")[1] for key in store.failures} == {"native"}  # the setting that the engine was working on
    for cell in store.cells:
        assert cell.context == "native" or len(list(store.samples(cell))) == 40
    assert out.startswith("| model")
    again = gatedeval(*arguments, cwd=folder)
    assert again.returncode == 0, again.stderr[-2000:]
    assert Store.read(folder / "died").failures == {}


@pytest.mark.slow
def test_a_dead_producer_fails_its_cell_and_another_produces_the_rest(folder: Path) -> None:
    """The producing process is killed: one cell fails by name, exit code 1; the same command finishes the run."""
    import psutil

    arguments = ["run", "small.yaml", "-o", "no-producer", "-s", "benchmarks.0.samples=4"]
    arguments += ["-s", "models=[{label: gate, path: tiny/headwise}]"]
    process = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed, deadline = False, time.monotonic() + 900
    while not killed and time.monotonic() < deadline and process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            if "harness.run.producer" in " ".join(child.cmdline()):
                child.kill()
                killed = True
        time.sleep(0.01)
    assert killed
    out, err = process.communicate(timeout=500)
    assert process.returncode == 1, err[-3000:]
    assert "the process that produces the samples died (signal 9)" in err
    store = Store.read(folder / "no-producer")
    assert len(store.failures) == 1
    for cell in store.cells:
        assert cell.key in store.failures or len(list(store.samples(cell))) == 4
    assert out.startswith("| model")
    again = gatedeval(*arguments, cwd=folder)
    assert again.returncode == 0, again.stderr[-2000:]
    assert Store.read(folder / "no-producer").failures == {}


@pytest.mark.extended
def test_without_the_plugin_nothing_is_evaluated(folder: Path) -> None:
    result = own_process(folder, "run", "small.yaml", "-o", "without", VLLM_PLUGINS="")
    assert result.returncode == 2
    assert "the gatedeval plugin is not loaded" in result.stderr.splitlines()[-1]
    assert result.stdout == ""


def test_plan_shows_cells_without_an_engine(folder: Path) -> None:
    result = gatedeval("plan", "small.yaml", cwd=folder)
    assert result.returncode == 0
    assert "starting" not in result.stderr
    total = next(x for x in result.stdout.splitlines() if x.startswith("total"))
    assert total.split()[1:3] == ["12", "24"]
