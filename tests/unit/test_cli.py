"""The command line itself: its help, and what it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_names_the_commands_and_the_first_config() -> None:
    result = python("cli.py", "--help")
    assert result.returncode == 0, result.stderr
    for word in ("run", "plan", "table", "check", "ruler", "twin", "data", "configs/table5.yaml"):
        assert word in result.stdout


@pytest.mark.parametrize("arguments", ["['--help']", "['run', '--help']", "['table', '--help']", "['ruler', '--help']"])
def test_help_imports_little(arguments: str) -> None:
    code = f"""
import sys
sys.argv = ["gatedeval", *{arguments}]
from harness.commands.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "vllm", "transformers", "lm_eval", "pandas"}} & set(sys.modules)
assert not heavy, heavy
assert len(sys.modules) < 400, len(sys.modules)  # about 0.1 s
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["types", "config", "rope", "stats", "models.layout"])
def test_pure_rooms_import_neither_torch_nor_vllm(module: str) -> None:
    code = f"import sys, harness.{module}; assert not {{'torch', 'vllm', 'transformers'}} & set(sys.modules)"
    assert python("-c", code).returncode == 0


def test_the_choices_are_what_the_exporter_knows() -> None:
    from harness import export
    from harness.commands import options

    assert tuple(options.FORMATS.choices) == export.FORMATS
    assert tuple(options.STYLES.choices) == export.STYLES


def test_the_command_modules_import_nothing_heavy() -> None:
    code = """
import sys
from harness.commands.main import cli
heavy = {"torch", "vllm", "transformers", "lm_eval", "pandas", "numpy", "pydantic", "harness.config"} & set(sys.modules)
assert not heavy, heavy
assert all(command.get_short_help_str(90) for command in cli.commands.values())
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
