"""A new user's trial: the commands and code blocks of README and docs, found in the files and run as they stand.

What cannot be run here is in `LEFT_OUT` with its reason; its options are still checked against the command line.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from harness.commands.main import cli
from harness.config import ContextSetting, from_dict
from tests.support import ROOT
from tests.support.sample_runs import config, write_run

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "tasks/*/README.md", "tests/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # about older versions
)
PROGRAMS = ("gatedeval", "lm_eval", "lm-eval", "make", "pip", "pytest", "python", "python3.11", "vllm")

LEFT_OUT = {
    r"gatedeval (plan|run) configs/table5\.yaml": "needs the hub's checkpoints",
    r"gatedeval (plan|run) configs/demo\.yaml --(measure|budget)": "starts engines; tests/engine/test_costs.py does",
    r"gatedeval data fetch$": "needs a network",
    r"gatedeval sweep ": "starts engines for minutes; tests/engine/test_sweep.py runs sweeps",
    r"gatedeval probe configs/": "starts engines, or needs the hub's checkpoints; tests/engine tests the probe",
    r"gatedeval export .* --to (inspect|wandb|mlflow)": "needs a client; tests/unit/test_exchange.py has them",
    r"gatedeval (import|merge) .*(theirs|both)": "needs other programs' results; tests/unit/test_importing.py",
    r"gatedeval (table|figures|report) results/probe-demo": "a run that starts engines; tests/engine tests the probe",
    r"gatedeval compare results/both": "the run that the command before it would have made",
    r"lm_eval .*\.\.\.$": "an ellipsis stands for the model; tests/unit/ruler/test_commands.py runs lm-eval's loop",
    r"python3\.11 -m venv ": "makes an environment; scripts/install.sh does it in `make install`",
    r"pip (install|uninstall) ": "changes the environment; scripts/install.sh does it in `make install`",
    r"python -m tasks\.demo train ": "trains for an hour; tests/unit/test_demo_training.py trains shortly",
    r"python -m pytest ": "a test within a test; the file that it names is looked for",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: the file, the line of its fence, its language, its text."""

    file: str
    line: int
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """Every fenced block of the documents."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            yield Block(str(path.relative_to(ROOT)), line, match[1], match[2])


def commands() -> Iterator[tuple[str, str]]:
    """(place, command) of every line of a block that starts with a program's name; continuation lines are joined."""
    for block in blocks():
        if block.language not in ("", "bash", "sh", "console"):
            continue
        for number, line in enumerate(block.text.replace("\\\n", " ").splitlines(), block.line + 1):
            for part in re.sub(r"\s#.*", "", line).split(" && "):
                command = re.sub(r"^(\$ )?(\.venv/bin/)?", "", part.strip())
                if command.split(" ")[0] in PROGRAMS:
                    yield f"{block.file}:{number}", command


COMMANDS = list(commands())


def reason(command: str) -> str | None:
    """Why a command is left out; None for one that is run."""
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, command)), None)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """The folder of somebody who has run the experiment and has the files that the documents name."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("table5", "again", "demo"):
        write_run(folder / "results" / name, config(("baseline", "SDPA gate"), lengths=(4096, 8192)), n=4)
    predictions = next((shared / "data" / "ruler_preds").glob("*.csv.gz"))
    (folder / "predictions.csv.gz").symlink_to(predictions)
    return folder


def test_the_documents_have_commands_and_every_reason_is_still_needed() -> None:
    assert len(COMMANDS) > 25
    assert {"README.md", "CONTRIBUTING.md", "docs/install.md", "docs/results.md"} <= {
        p.split(":")[0] for p, _ in COMMANDS
    }
    unused = [pattern for pattern in LEFT_OUT if not any(re.match(pattern, command) for _, command in COMMANDS)]
    assert unused == []


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=[f"{p} {c[:40]}" for p, c in COMMANDS])
def test_a_documented_command_runs_or_has_a_reason_not_to(
    place: str, command: str, workspace: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = str(shared / "oracles" / "ruler" / "tokenizer_bpe4k")
    filled = command.replace("--tokenizer DIR", f"--tokenizer {tokenizer}").replace("DIR", str(shared / "data"))
    if command.startswith("pip ") and reason(command):
        return  # with placeholders that no shell would take
    words = shlex.split(filled.split(" > ")[0])
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [w for w in words[1:] if "=" not in w and w not in targets] == [], place
        return
    if words[0] == "gatedeval":
        check_options(words[1:], place)
    if "pytest" in words:
        assert all((ROOT / word.split("::")[0]).exists() for word in words if word.startswith("tests/")), place
    if reason(command):
        return
    assert words[0] == "gatedeval", f"{place}: {command!r} is not run and has no reason in LEFT_OUT"
    monkeypatch.chdir(workspace)
    done = CliRunner().invoke(cli, words[1:])
    assert done.exit_code == 0, (place, done.output, done.exception)


def check_options(words: list[str], place: str) -> None:
    """Every sub-command and option of a `gatedeval` command line exists."""
    group: Any = cli
    while isinstance(group, click.Group):
        assert words, f"{place}: no command"
        name, words = words[0], words[1:]
        found = group.get_command(click.Context(group), name)
        assert found is not None, f"{place}: gatedeval has no command {name!r}"
        group = found
    known = {option for p in group.params for option in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
    given = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert given <= known, f"{place}: {sorted(given - known)}"


INLINE = [
    (str(path.relative_to(ROOT)), match[1])
    for path in DOCUMENTS
    for match in re.finditer(r"`(gatedeval [^`\n]+)`", path.read_text(encoding="utf-8"))
    if not match[1].startswith("gatedeval needs its own package")  # an error message that a table explains
]


@pytest.mark.parametrize(("place", "command"), INLINE, ids=[f"{p} {c[:50]}" for p, c in INLINE])
def test_a_command_in_a_sentence_has_options_that_exist(place: str, command: str) -> None:
    words = shlex.split(command)[1:]
    if not re.fullmatch(r"-.*|[A-Z.]+", words[0]):  # `gatedeval --help`, `gatedeval ...`
        check_options(words, place)


CODE = [block for block in blocks() if block.language in ("python", "yaml")]


@pytest.mark.parametrize("block", CODE, ids=[f"{b.file}:{b.line} {b.language}" for b in CODE])
def test_a_documented_block_of_code_works(block: Block, workspace: Path, shared: Path) -> None:
    if block.language == "yaml":
        if "apiVersion:" in block.text:
            assert yaml.safe_load(block.text)["kind"]  # a manifest for Kubernetes
            return
        data = {
            "name": "x", "models": [{"label": "m", "path": "org/name"}], "benchmarks": ["gsm8k"],
            **yaml.safe_load(block.text),
        }  # fmt: skip
        assert from_dict(data).contexts
        return
    if block.text.startswith(">>>"):
        yarn = {"factor": 4.0, "original_max_position_embeddings": 32768}
        setting = ContextSetting(label="YaRN", rope_theta=1e6, yarn=yarn, max_length=131072)  # type: ignore[arg-type]
        names = {"setting": setting, "checkpoint_config": {"max_position_embeddings": 32768, "rope_theta": 10000.0}}
        example = doctest.DocTestParser().get_doctest(block.text, names, block.file, block.file, block.line)
        flags = doctest.NORMALIZE_WHITESPACE
        assert doctest.DocTestRunner(optionflags=flags).run(example).failed == 0
        return
    code = block.text.replace("path/to/model", str(shared / "oracles" / "ruler" / "tokenizer_bpe4k"))
    code = code.replace("path/to/data", str(shared / "data")).replace("samples=500", "samples=1")
    code = f"model = str.lower\n{code}"  # an answer for blocks that ask a model
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=workspace, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
