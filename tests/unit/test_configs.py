"""The configs that come with the project, the documentation of their keys, and the commands a newcomer is told."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from harness.benchmarks.ruler import Ruler
from harness.config import Config, ContextSetting, EngineOptions, Model, TableOptions, Yarn, load, to_dict
from harness.config.discovery import benchmark_types
from harness.config.fields import Entry
from harness.config.probing import ProbeOptions
from harness.config.sampling import Decide, Sampling
from harness.config.vocabulary import Llama3, LongRope
from harness.rope.context import overrides
from harness.types import Cell
from tasks.demo import MODELS
from tasks.demo.recipe import ARMS, SHIPPED
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support import ROOT

CONFIGS = sorted(p.stem for p in (ROOT / "configs").glob("*.yaml"))
NEED_NO_DATA = {"niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe"}  # no essays, no SQuAD
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(work|root|tmp|home|opt|mnt)/")


def test_the_four_configs_are_there() -> None:
    assert set(CONFIGS) >= {"demo", "smoke-128k", "smollm2", "table5"}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_loads_and_is_named_after_its_file(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    config = load(path, check_paths=False)
    assert config.name == name
    assert not MACHINE_PATH.search(path.read_text())
    keys = [
        Cell(m.label, c.label, b.name, task, length).key
        for m in config.models
        for c in config.contexts
        for b in config.benchmarks
        for task, length in b.task_lengths()
    ]
    assert len(set(keys)) == len(keys)
    assert to_dict(config)["name"] == name


def test_table5_is_the_papers_experiment() -> None:
    config = load(ROOT / "configs/table5.yaml", check_paths=True)  # hub ids: nothing has to be there
    assert [m.subfolder for m in config.models] == ["1B_baseline", "1B_gate_headwise"]
    assert [(c.rope_theta, c.max_length) for c in config.contexts] == [(1e6, 32768), (1e6, 131072)]
    ruler, *others = config.benchmarks
    assert isinstance(ruler, Ruler)
    assert (ruler.tasks, ruler.samples) == (RULER_TASKS, 500)
    assert ruler.lengths == (4096, 8192, 16384, 32768, 65536, 131072)
    assert [(b.name, getattr(b, "shots", None)) for b in others] == [("mmlu", 5), ("gsm8k", 5), ("hellaswag", 0)]
    checkpoint = {"head_dim": 128, "max_position_embeddings": 4096, "rope_theta": 10000.0}
    assert [overrides(c, checkpoint).max_model_len for c in config.contexts] == [32768, 131072]


def test_the_smoke_test_needs_nothing_that_is_not_built_on_the_spot() -> None:
    config = load(ROOT / "configs/smoke-128k.yaml", check_paths=False)
    assert all(".cache/tiny/" in m.path for m in config.models)  # absolute once it is built
    [ruler] = config.benchmarks
    assert ruler.name == "ruler"
    assert set(ruler.tasks) <= NEED_NO_DATA
    assert any("random weights" in line for line in config.caption)


def test_the_demo_is_the_papers_protocol_at_a_sixteenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its models and data come with the project, from wherever it is started
    config = load(ROOT / "configs/demo.yaml", check_paths=True)
    assert config.data == MODELS.parent / "data"
    trained = {(Path(m.path).parent.name, Path(m.path).name): config.contexts_of(m) for m in config.models}
    assert set(trained) == {(arm, stage.name) for arm in ARMS for stage in SHIPPED}
    for (_, stage), contexts in trained.items():
        assert [(c.rope_theta, c.max_length, c.yarn.factor if c.yarn else 1) for c in contexts] == (
            [(1e4, 4096 / 16, 1)] if stage == "short" else [(1e6, 32768 / 16, 1), (1e6, 131072 / 16, 4)]
        )
    rulers = [b for b in config.benchmarks if isinstance(b, Ruler)]
    lengths = [n for b in rulers for n in b.lengths]
    assert lengths == [n // 16 for n in (4096, 8192, 16384, 32768, 65536, 131072)]
    assert rulers[0].samples >= 100
    assert any("no evidence" in line for line in config.caption)


def test_the_smoke_test_goes_from_4k_to_128k_with_one_sample() -> None:
    ruler = load(ROOT / "configs/smoke-128k.yaml", check_paths=False).benchmarks[0]
    assert isinstance(ruler, Ruler)
    assert (ruler.lengths[0], ruler.lengths[-1], ruler.samples) == (4096, 131072, 1)


def sections() -> dict[str, type[Entry]]:
    """Every class of keys that a config can have."""
    vocabulary: dict[str, type[Entry]] = {
        "top": Config,
        "model": Model,
        "context": ContextSetting,
        "yarn": Yarn,
        "engine": EngineOptions,
    }
    vocabulary |= {"llama3": Llama3, "longrope": LongRope, "samples": Sampling, "decide": Decide}
    return {**vocabulary, "probe": ProbeOptions, "table": TableOptions, **benchmark_types()}


def test_every_key_is_documented_and_every_documented_key_exists() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    documented = {
        heading.strip(): set(re.findall(r"^\| `(\w+)` \|", body, flags=re.M))
        for heading, body in re.findall(r"^#+ (.+)\n((?:(?!^#).*\n)*)", text, flags=re.M)
    }
    headings = {
        "top": "Top level",
        "model": "`models`",
        "context": "`contexts`",
        "yarn": "`yarn`",
        "llama3": "`llama3`",
        "longrope": "`longrope`",
        "engine": "`engine`",
        "samples": "`samples`",
        "decide": "`decide`",
        "probe": "`probe`",
        "table": "`table`",
        "ruler": "RULER: `{ruler: ..., lengths: [...], ...}`",
        "mmlu": "MMLU: `{mmlu: {...}}`",
        "gsm8k": "GSM8k: `{gsm8k: {...}}`",
        "lm_eval": "Any other lm-eval task: `{lm_eval: NAME, ...}`",
    }
    assert headings.keys() == sections().keys()
    for section, keys in sections().items():
        assert documented[headings[section]] == set(keys.model_fields), section


def test_documented_defaults_are_the_real_ones() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, flags=re.M))
    for keys in sections().values():
        for key, field in keys.model_fields.items():
            if (
                key in rows
                and isinstance(field.default, int | float | str)
                and key not in ("samples", "shots", "dtype")
            ):
                assert rows[key].removesuffix(".0") == f"{field.default}".lower().removesuffix(".0"), key


def test_the_examples_in_the_documentation_load(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/configuration.md").read_text(), flags=re.M | re.S)
    contexts = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/context-settings.md").read_text(), flags=re.M | re.S)
    rest = "name: x\nmodels: [{label: m, path: org/m}]\nbenchmarks: [gsm8k]\n"
    for text in [*blocks, *(rest + c for c in contexts)]:
        (tmp_path / "example.yaml").write_text(text)
        assert load(tmp_path / "example.yaml").contexts
    assert blocks
    assert contexts


def test_the_override_shown_in_the_documentation_is_what_we_pass() -> None:
    table5 = load(ROOT / "configs/table5.yaml")
    given = overrides(table5.contexts[1], {"max_position_embeddings": 40960, "rope_theta": 1e6}).hf_overrides
    shown = re.search(r"hf_overrides\n(\{.*?\})\n```", (ROOT / "docs/context-settings.md").read_text(), flags=re.S)
    assert shown is not None
    assert re.sub(r"\s+", " ", shown.group(1)) == str(given)


def test_make_knows_what_the_documents_and_ci_name() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z0-9-]*)", (ROOT / "docs/install.md").read_text(), flags=re.M))
    assert named <= targets
    assert {"demo", "test", "test-slow", "check", "lint", "types", "bench-ruler"} <= targets
    assert "make test" in (ROOT / ".ci/run").read_text()
    for script in (ROOT / ".ci/run", ROOT / "scripts/install.sh"):
        assert subprocess.run(["bash", "-n", str(script)], capture_output=True).returncode == 0


def test_the_torch_pin_is_the_one_in_the_installation_guide() -> None:
    pin = re.search(r'"torch==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pin is not None
    assert f"torch=={pin.group(1)}\n" in (ROOT / "docs/install.md").read_text()


def test_the_versions_that_make_installs_are_exact_and_name_no_machine() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.!]*", line) for line in lines[1:])
    pinned = dict(line.split("==") for line in lines[1:])
    for name, pin in re.findall(r'"([\w.-]+)==([\d.]+)"', (ROOT / "pyproject.toml").read_text()):
        assert pinned[name] == pin
