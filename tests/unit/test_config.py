"""The config: what it becomes, and what each mistake is answered with."""

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks.lm_eval import Gsm8k, LmEval, Mmlu
from harness.benchmarks.protocol import benchmarks_of, divergences
from harness.benchmarks.ruler import Ruler
from harness.config import Config, ContextSetting, EngineOptions, Model, Yarn, from_dict, load, to_dict
from harness.config.yaml_text import scalar
from harness.types import GatedevalError
from tasks import mmlu
from tasks.ruler.protocol import TASKS as RULER_TASKS
from tests.support import ROOT

ISSUE = """\
name: table5
models:
  - {label: baseline,  path: QwQZh/gated_attention, subfolder: 1B_baseline}
  - {label: SDPA gate, path: QwQZh/gated_attention, subfolder: 1B_gate_headwise}
contexts:
  - {label: 32k,  rope_theta: 1_000_000, max_length: 32768}
  - {label: YaRN, rope_theta: 1_000_000, yarn: {factor: 4, original_max_position_embeddings: 32768}, max_length: 131072}
benchmarks:
  - {ruler: all, lengths: [4096, 8192, 16384, 32768, 65536, 131072], samples: 500}
  - {mmlu: {shots: 5}}
  - {gsm8k: {shots: 5}}
  - {lm_eval: hellaswag, shots: 0}       # any lm-eval task by name
"""
HEAD = "name: n\nmodels:\n  - {label: m, path: org/m}\n"
TAIL = "benchmarks:\n  - gsm8k\n"

Loader = Callable[..., Config]


@pytest.fixture
def yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, overrides: Any = (), **kw: Any) -> Config:
        Path("c.yaml").write_text(text)
        return load("c.yaml", overrides, **kw)

    return load_text


def message(yaml: Loader, text: str, overrides: Any = ()) -> str:
    with pytest.raises(GatedevalError) as error:
        yaml(text, overrides)
    return str(error.value)


# ------------------------------------------------------------------------------------------------------- what is read


def test_a_model_may_have_contexts_of_its_own(yaml: Loader) -> None:
    models = "name: n\nmodels:\n  - {label: a, path: org/a, contexts: [long]}\n  - {label: b, path: org/b}\n"
    contexts = "contexts:\n  - {label: native}\n  - {label: long, rope_theta: 1e6, max_length: 8192}\n"
    config = yaml(models + contexts + TAIL)
    assert [[c.label for c in config.contexts_of(m)] for m in config.models] == [["long"], ["native", "long"]]
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    wrong = message(yaml, models.replace("[long]", "[lang]") + contexts + TAIL)
    assert "c.yaml:3: models 'a', contexts: no context 'lang'; did you mean 'long'?" in wrong


def test_the_example_becomes_the_vocabulary(yaml: Loader) -> None:
    c = yaml(ISSUE)
    assert c.name == "table5"
    assert c.models[1] == Model(label="SDPA gate", path="QwQZh/gated_attention", subfolder="1B_gate_headwise")
    assert c.contexts[0] == ContextSetting(label="32k", rope_theta=1e6, max_length=32768)
    assert c.contexts[1].yarn == Yarn(factor=4.0, original_max_position_embeddings=32768)
    ruler, mmlu, gsm8k, hellaswag = c.benchmarks
    assert (ruler.tasks, ruler.lengths[-1], ruler.samples) == (RULER_TASKS, 131072, 500)
    assert isinstance(ruler, Ruler)
    assert isinstance(mmlu, Mmlu)
    assert (ruler.profile, ruler.answer_prefix, ruler.answer_tokens) == ("nvidia", "append", None)
    assert (mmlu.name, len(mmlu.tasks), mmlu.shots, mmlu.samples) == ("mmlu", 57, 5, None)
    assert isinstance(gsm8k, Gsm8k)
    assert isinstance(hellaswag, LmEval)
    assert (gsm8k.name, gsm8k.shots) == ("gsm8k", 5)
    assert (hellaswag.name, hellaswag.shots) == ("hellaswag", 0)
    assert (c.seed, c.results, c.data, c.engine.dtype) == (42, Path("results"), None, "auto")


def test_the_resolved_config_loads_back_equal(yaml: Loader, tmp_path: Path) -> None:
    text = ISSUE + "engine: {dtype: float32, max_num_seqs: 8}\ncaption: a note\nchat_template: true\nseed: 7\n"
    c = yaml(text)
    resolved = json.dumps(to_dict(c), indent=1)
    assert from_dict(json.loads(resolved)) == c
    (tmp_path / "run.json").write_text(resolved)
    assert load(tmp_path / "run.json") == c
    assert c.models[0].dtype == "float32"  # the engine's, unless the model has its own
    assert to_dict(c)["contexts"][1]["yarn"]["factor"] == 4.0


def test_short_forms_mean_the_same(yaml: Loader) -> None:
    long = yaml(HEAD + "contexts: [{label: native}]\nbenchmarks:\n  - {mmlu: {}}\n  - {gsm8k: {shots: 5}}\n")
    assert yaml(HEAD + "benchmarks:\n  - mmlu\n  - gsm8k\n") == long
    assert yaml(HEAD + "benchmarks:\n  - {mmlu: all}\n  - {gsm8k: , shots: 5}\n") == long
    one = yaml(HEAD + "benchmarks:\n  - {mmlu: {subjects: anatomy, samples: 3}}\n")
    assert yaml(HEAD + "benchmarks:\n  - {mmlu: [anatomy], samples: 3}\n") == one
    assert one.benchmarks[0].tasks == ("anatomy",)
    assert yaml(HEAD + "contexts: [{label: x, linear: {factor: 4}}]\n" + TAIL).contexts[0].linear == 4.0


def test_numbers_are_read_as_people_mean_them() -> None:
    assert [scalar(t) for t in ("1_000_000", "1e6", "1E+6", "0.5", "010", "-3", "32k", "1:30", "on", "no")] == [
        1000000,
        1e6,
        1e6,
        0.5,
        10,
        -3,
        "32k",
        "1:30",
        "on",
        "no",
    ]
    assert [scalar(t) for t in ("true", "False", "null", "~", "")] == [True, False, None, None, None]


def test_a_length_may_be_written_as_1e5(yaml: Loader) -> None:
    c = yaml(HEAD + "contexts:\n  - {label: no, rope_theta: 1e6, max_length: 1e5}\n" + TAIL)
    assert c.contexts[0] == ContextSetting(label="no", rope_theta=1e6, max_length=100000)
    assert isinstance(c.contexts[0].max_length, int)


def test_paths_are_found_from_here_then_from_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/models/a/sub").mkdir(parents=True)
    (tmp_path / "here/models/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "configs/c.yaml"
    path.write_text(
        "name: n\nmodels:\n- {label: a, path: models/a, subfolder: sub}\n- {label: b, path: models/b}\n"
        "- {label: h, path: models/hub}\ndata: models\n" + TAIL
    )
    c = load(path)
    assert c.models[0].path == str(tmp_path / "configs/models/a")
    assert c.models[1].path == str(tmp_path / "here/models/b")
    assert c.models[2].path == "models/hub"  # org/name: a hub id
    assert c.data == tmp_path / "here/models"


# -------------------------------------------------------------------------------------------------- the command line


def test_the_command_line_wins(yaml: Loader) -> None:
    c = yaml(
        ISSUE,
        [
            "seed=1",
            "engine.max_num_seqs=4",
            "contexts.YaRN.yarn.factor=8",
            "contexts.0.max_length=65536",
            "benchmarks.*.samples=2",
            "benchmarks.mmlu.subjects=[anatomy, astronomy]",
            "benchmarks.ruler.lengths=[1024]",
            "models.SDPA gate.dtype=float32",
        ],
    )
    assert (c.seed, c.engine.max_num_seqs, c.contexts[0].max_length) == (1, 4, 65536)
    assert c.contexts[1].yarn == Yarn(factor=8.0, original_max_position_embeddings=32768)
    assert [getattr(b, "samples", 0) for b in c.benchmarks] == [2, 2, 2, 2]
    assert {n for _, n in c.benchmarks[0].task_lengths()} == {1024}
    assert c.benchmarks[1].tasks == ("anatomy", "astronomy")
    assert [m.dtype for m in c.models] == ["auto", "float32"]
    assert yaml(ISSUE, ["seed=1", ("results", Path("a: b"))]).results == Path("a: b")
    assert yaml(ISSUE, {"seed": 1, "results": Path("elsewhere")}).results == Path("elsewhere")


def test_ruler_entries_may_differ_in_lengths_samples_and_answer_budget(yaml: Loader) -> None:
    c = yaml(
        HEAD + "benchmarks:\n"
        "  - {ruler: [niah_single_1, niah_multikey_1], lengths: [256], samples: 100, answer_tokens: 16}\n"
        "  - {ruler: [niah_single_1, niah_multikey_1], lengths: [2048, 4096], samples: 10, answer_tokens: 16}\n"
        "  - {ruler: vt, lengths: [2048], samples: 10}\n"
    )
    assert [b.answer_tokens for b in c.benchmarks if isinstance(b, Ruler)] == [16, 16, None]
    assert from_dict(to_dict(c)) == c
    assert divergences(benchmarks_of(c)[:2]) == {"ruler answer_tokens": 16}
    assert divergences(benchmarks_of(c)) == {
        "ruler answer_tokens": "16 for niah_single_1, niah_multikey_1 at 256, 2048, 4096; as in RULER for vt at 2048"
    }
    assert divergences(benchmarks_of(c)[2:]) == {}


def test_a_label_with_dots_can_be_named(yaml: Loader) -> None:
    text = "name: n\nmodels:\n  - {label: Qwen2.5, path: org/m}\n" + TAIL
    assert yaml(text, ["models.Qwen2.5.path=org/other"]).models[0].path == "org/other"


@pytest.mark.parametrize(
    ("option", "parts"),
    [
        ("seed", ["option 'seed'", "key=value"]),
        ("sede=1", ["option sede", "unknown key 'sede'", "did you mean 'seed'"]),
        ("seed=x", ["option seed", "whole number", "'x'"]),
        ("contexts.yarn.max_length=1", ["contexts has no entry 'yarn'", "did you mean 'YaRN'"]),
        ("contexts.YaRN.max_length=262144", ["c.yaml:7", "131072", "262144"]),
        ("engine.dtype=int8", ["option engine.dtype", "'bfloat16'"]),
        ("benchmarks.ruler.lengths=[", ["option benchmarks.ruler.lengths", "not a valid value"]),
        ("name.x=1", ["option name.x", "no keys"]),
        ("models.0=baseline", ["option models.0", "mapping"]),
        ("models=[]", ["option models", "empty"]),
    ],
)
def test_wrong_options_are_named(yaml: Loader, option: str, parts: list[str]) -> None:
    got = message(yaml, ISSUE, [option])
    assert all(p in got for p in parts), got


# --------------------------------------------------------------------------------------------------------- mistakes

MISTAKES: dict[str, tuple[str, list[str]]] = {
    "unknown key": (HEAD + "sede: 1\n" + TAIL, ["c.yaml:4:", "unknown key 'sede'", "did you mean 'seed'"]),
    "unknown key, nothing close": (HEAD + "zzz: 1\n" + TAIL, ["c.yaml:4:", "known keys: name, models"]),
    "unknown nested key": (
        HEAD + "contexts:\n  - label: y\n    yarn:\n      factr: 4\n      original_max_position_embeddings: 8\n" + TAIL,
        ["c.yaml:7:", "contexts 'y', yarn", "'factr'", "did you mean 'factor'"],
    ),
    "missing key": ("name: n\nmodels:\n  - {label: m}\n" + TAIL, ["c.yaml:3:", "models 'm'", "missing key 'path'"]),
    "nothing to do": (HEAD, ["c.yaml:1:", "missing key 'benchmarks'"]),
    "wrong type": (HEAD + "seed: 1.5\n" + TAIL, ["c.yaml:4:", "seed", "whole number", "1.5"]),
    "text for a length": (
        HEAD + "contexts: [{label: a, max_length: 32kb}]\n" + TAIL,
        ["c.yaml:4:", "max_length: should be a length in tokens, a whole number such as 4096, 4K or 1M; it is '32kb'"],
    ),
    "text for a number of tokens": (
        HEAD + "engine: {max_num_batched_tokens: 32k}\n" + TAIL,
        ["c.yaml:4:", "'32k'", "did you mean 32768"],
    ),
    "number for a label": (
        "name: n\nmodels:\n  - {label: 7, path: org/m}\n" + TAIL,
        ["c.yaml:3:", "label", 'write "7" in quotes'],
    ),
    "boolean": (HEAD + "chat_template: yes\n" + TAIL, ["c.yaml:4:", "true or false", "'yes'"]),
    "true is not a number": (HEAD + "seed: true\n" + TAIL, ["c.yaml:4:", "whole number"]),
    "duplicate model label": (
        "name: n\nmodels:\n  - {label: m, path: org/a}\n  - {label: m, path: org/b}\n" + TAIL,
        ["c.yaml:4:", "'m'", "already used at c.yaml:3"],
    ),
    "duplicate context label": (
        HEAD + "contexts:\n  - label: a\n  - label: b\n  - label: a\n" + TAIL,
        ["c.yaml:7:", "'a'", "c.yaml:5"],
    ),
    "duplicate key": (HEAD + "seed: 1\nseed: 2\n" + TAIL, ["c.yaml:5:", "'seed'", "twice", "line 4"]),
    "engine": (HEAD + "engine: fast\n" + TAIL, ["c.yaml:4:", "engine", "mapping"]),
    "engine key": (HEAD + "engine: {tensor_paralel_size: 2}\n" + TAIL, ["c.yaml:4:", "'tensor_parallel_size'"]),
    "empty models": ("name: n\nmodels: []\n" + TAIL, ["c.yaml:2:", "models", "empty"]),
    "empty lengths": (HEAD + "benchmarks:\n  - {ruler: all, lengths: []}\n", ["c.yaml:5:", "lengths", "empty"]),
    "empty tasks": (HEAD + "benchmarks:\n  - {ruler: [], lengths: [4096]}\n", ["c.yaml:5:", "RULER task"]),
    "no lengths": (HEAD + "benchmarks:\n  - {ruler: all}\n", ["c.yaml:5:", "missing key 'lengths'"]),
    "negative length": (HEAD + "benchmarks:\n  - {ruler: vt, lengths: [-4]}\n", ["c.yaml:5:", "above 0", "-4"]),
    "length twice": (HEAD + "benchmarks:\n  - {ruler: vt, lengths: [512, 512]}\n", ["c.yaml:5:", "512 twice"]),
    "zero samples": (HEAD + "benchmarks:\n  - {gsm8k: {samples: 0}}\n", ["c.yaml:5:", "samples", "above 0"]),
    "length beyond every context": (
        ISSUE.replace("65536, 131072]", "65536, 262144]"),
        ["c.yaml:9:", "262144", "every context", "131072", "'YaRN'"],
    ),
    "yarn that does not reach": (
        ISSUE.replace("factor: 4", "factor: 2"),
        ["c.yaml:7:", "'YaRN'", "2 x original 32768 = 65536", "131072", "at least 4"],
    ),
    "two kinds": (HEAD + "contexts:\n  - {label: a, linear: 2, dynamic: 2}\n" + TAIL, ["c.yaml:5:", "exclude"]),
    "betas": (
        HEAD + "contexts:\n- {label: a, yarn: {factor: 2, original_max_position_embeddings: 9, beta_fast: 1}}\n" + TAIL,
        ["c.yaml:5:", "beta_fast"],
    ),
    "ruler task": (
        HEAD + "benchmarks:\n  - {ruler: [niah_singel_1], lengths: [4096]}\n",
        ["c.yaml:5:", "'niah_singel_1'", "did you mean 'niah_single_1'"],
    ),
    "mmlu subject": (
        HEAD + "benchmarks:\n  - mmlu:\n      subjects: [astronmy]\n",
        ["c.yaml:6:", "'astronmy'", "did you mean 'astronomy'"],
    ),
    "shots": (HEAD + "benchmarks:\n  - {mmlu: {shots: 6}}\n", ["c.yaml:5:", "0 to 5", "dev split"]),
    "benchmark name": (HEAD + "benchmarks:\n  - gsm8\n", ["c.yaml:5:", "did you mean 'gsm8k'"]),
    "lm-eval task by itself": (HEAD + "benchmarks:\n  - hellaswag\n", ["c.yaml:5:", "{lm_eval: hellaswag}"]),
    "two benchmarks in one": (HEAD + "benchmarks:\n  - {mmlu: {}, gsm8k: {}}\n", ["c.yaml:5:", "mmlu and gsm8k"]),
    "benchmark twice": (HEAD + "benchmarks:\n  - gsm8k\n  - {lm_eval: gsm8k}\n", ["c.yaml:6:", "twice", "c.yaml:5"]),
    "cell twice": (
        HEAD + "benchmarks:\n  - {ruler: all, lengths: [512]}\n  - {ruler: vt, lengths: [512, 1024]}\n",
        ["c.yaml:6:", "vt at 512", "twice"],
    ),
    "two profiles": (
        HEAD + "benchmarks:\n  - {ruler: vt, lengths: [512]}\n  - {ruler: vt, lengths: [1024], profile: fair}\n",
        ["c.yaml:6:", "profile"],
    ),
    "answer budget": (
        HEAD + "benchmarks:\n  - {ruler: vt, lengths: [512], answer_tokens: 0}\n",
        ["c.yaml:5:", "answer_tokens", "above 0"],
    ),
    "profile": (
        HEAD + "benchmarks:\n  - {ruler: vt, lengths: [512], profile: nvdia}\n",
        ["c.yaml:5:", "'nvidia' or 'fair'"],
    ),
    "name": ("name: a/b\n" + HEAD[8:] + TAIL, ["c.yaml:1:", "name", "'a/b'"]),
    "thinking without template": (HEAD + "thinking: true\n" + TAIL, ["c.yaml:4:", "chat_template: true"]),
    "model path": (
        "name: n\nmodels:\n  - {label: m, path: ./nowhere}\n" + TAIL,
        ["c.yaml:3:", "'./nowhere'", "org/name"],
    ),
    "data path": (HEAD + "data: nowhere\n" + TAIL, ["c.yaml:4:", "'nowhere'"]),
    "syntax": (HEAD + "seed: [1\n" + TAIL, ["c.yaml:", "not valid YAML"]),
    "tab": ("name: n\nmodels:\n\t- a\n", ["c.yaml:3", "tabs"]),
    "not a mapping": ("- a\n- b\n", ["c.yaml:1", "mapping"]),
    "empty": ("# nothing\n", ["c.yaml", "empty"]),
    "contexts of the wrong kind": (HEAD + "contexts: native\n" + TAIL, ["c.yaml:4:", "contexts", "list"]),
    "an entry of the wrong kind": (HEAD + "contexts: [native]\n" + TAIL, ["c.yaml:4:", "mapping"]),
    "endless alias": (HEAD + "contexts: &a [*a]\n" + TAIL, ["c.yaml:4", "alias"]),
    "infinite factor": (
        HEAD + "contexts:\n  - {label: a, linear: .inf}\n" + TAIL,
        ["c.yaml:5:", "linear", "number"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_with_file_line_and_remedy(yaml: Loader, case: str) -> None:
    text, parts = MISTAKES[case]
    got = message(yaml, text)
    assert all(p in got for p in parts), got
    assert "\n" not in got, "one mistake, one line"


def test_all_mistakes_of_a_file_are_told_together(yaml: Loader) -> None:
    text = (
        "name: n\nmodels:\n  - {label: m, path: org/m, subfoldr: x}\n  - {label: m, path: org/m}\n"
        "contexts:\n  - {label: a, max_length: 0}\nbenchmarks:\n  - {mmlu: {shots: 9}}\n  - nonsense\nsede: 3\n"
    )
    lines = message(yaml, text, ["seed=x"]).splitlines()
    assert lines[0] == "c.yaml: 7 errors"
    assert sorted(line.split(": ")[0].strip() for line in lines[1:]) == [
        "c.yaml:10",
        "c.yaml:3",
        "c.yaml:4",
        "c.yaml:6",
        "c.yaml:8",
        "c.yaml:9",
        "option seed",
    ]


def test_a_missing_file_is_named_with_its_neighbour(yaml: Loader) -> None:
    yaml(HEAD + TAIL)
    with pytest.raises(GatedevalError, match=r"cc\.yaml: no such config file; did you mean 'c\.yaml'"):
        load("cc.yaml")


def test_a_local_checkpoint_without_its_subfolder(yaml: Loader, tmp_path: Path) -> None:
    (tmp_path / "ckpt/1B_baseline").mkdir(parents=True)
    text = "name: n\nmodels:\n  - {label: m, path: ckpt, subfolder: 1b_baselin}\n" + TAIL
    assert "did you mean '1B_baseline'" in message(yaml, text)
    (tmp_path / "file").write_text("")
    assert "is a file" in message(yaml, "name: n\nmodels:\n  - {label: m, path: ./file}\n" + TAIL)


def test_lengths_are_not_judged_where_a_limit_is_the_checkpoints(yaml: Loader) -> None:
    text = (
        HEAD
        + "contexts:\n  - {label: a, max_length: 512}\n  - label: b\nbenchmarks:\n  - {ruler: vt, lengths: [4096]}\n"
    )
    assert yaml(text).contexts[1].max_length is None


def test_names_are_lm_evals_and_rulers() -> None:
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    tasks = Path(spec.origin).parent / "tasks"
    theirs = {p.stem.removeprefix("mmlu_") for p in (tasks / "mmlu/default").glob("mmlu_*.yaml")}
    assert set(mmlu.SUBJECTS) == theirs
    assert (len(mmlu.SUBJECTS), len(RULER_TASKS)) == (57, 13)


@pytest.mark.parametrize("then", ["", "; _.load('configs/table5.yaml')"])
def test_config_imports_nothing_heavy(then: str) -> None:
    heavy = "{'torch', 'vllm', 'transformers', 'pandas', 'lm_eval', 'datasets'}"
    code = f"import sys, harness.config as _{then}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr


def test_what_is_constructed_from_python_is_checked_like_a_file() -> None:
    with pytest.raises(GatedevalError, match=r"EngineOptions: tensor_paralel_size: unknown key .* did you mean"):
        EngineOptions(tensor_paralel_size=2)  # type: ignore[call-arg]
    with pytest.raises(GatedevalError, match="ContextSetting: linear and dynamic exclude one another"):
        ContextSetting(label="a", linear=2, dynamic=2)
    with pytest.raises(GatedevalError, match=r"Yarn: factor: should be at least 1, is 0\.5"):
        Yarn(factor=0.5, original_max_position_embeddings=4096)


def test_a_config_is_immutable_and_hashed_by_its_values(yaml: Loader) -> None:
    one, two = yaml(ISSUE), yaml(ISSUE)
    assert one == two
    assert len({one, two, yaml(ISSUE, ["seed=1"])}) == 2
    assert pickle.loads(pickle.dumps(one)) == one  # it is sent to the producer's process
    with pytest.raises(ValueError, match="frozen"):
        one.seed = 1  # type: ignore[misc]


def test_a_key_of_a_part_at_the_top_level_is_answered_with_the_top_levels_keys(yaml: Loader) -> None:
    assert "unknown key 'yarn'; known keys: name, models" in message(yaml, HEAD + TAIL + "yarn: {factor: 2}\n")


def test_a_plain_config_has_the_data_that_older_versions_wrote() -> None:
    """Keys that were added later are in the data only where they are set."""
    plain = from_dict(
        {
            "name": "n",
            "models": [{"label": "m", "path": "org/m"}],
            "contexts": [{"label": "y", "yarn": {"factor": 2, "original_max_position_embeddings": 1024}}],
            "benchmarks": [{"ruler": ["vt"], "lengths": [1024]}],
        }
    )
    data = to_dict(plain)
    assert set(data["contexts"][0]) == {"label", "max_length", "rope_theta", "yarn", "linear", "dynamic"}
    assert not {"mscale", "mscale_all_dim"} & set(data["contexts"][0]["yarn"])
    assert "word_list" not in data["benchmarks"][0]
    longer = {"label": "n", "ntk": 4.0}
    assert to_dict(from_dict({**data, "contexts": [longer]}))["contexts"][0]["ntk"] == 4.0
