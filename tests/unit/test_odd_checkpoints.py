"""Checkpoints with one fault each: `check` and `plan` refuse them with the same message, or report what they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.config import ContextSetting, Model, Yarn, from_dict
from harness.engine.encoding import Encoder
from harness.engine.requests import Prompt
from harness.engine.start import running_dtype
from harness.models.admission import admit
from harness.models.bpe import save_tokenizer, train_bpe
from harness.models.checkpoint import Checkpoint, inspect
from harness.models.tiny import make_tiny
from harness.run.plan import build
from harness.types import GatedevalError
from tests.checkpoints import families, odd
from tests.support.engines import altered


def _tokenizer(directory: Path) -> None:
    save_tokenizer(train_bpe((f"word {i}" for i in range(500)), 400), directory)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A sound tiny checkpoint of a family, with a tokenizer; made once per family."""
    root = tmp_path_factory.mktemp("families")

    def make(family: str) -> Path:
        directory = root / family
        return directory if directory.exists() else families.write(family, directory, _tokenizer)

    return make


def refused(directory: Path) -> str:
    """The refusal of `plan`, after checking that `check` ends with exit code 2 and the same message."""
    from harness.commands.main import cli

    config = {
        "name": "odd",
        "models": [{"label": str(directory), "path": str(directory)}],
        "benchmarks": [{"lm_eval": "demo_words", "shots": 0, "samples": 2}],
    }
    [refusal] = build(from_dict(config)).refusals
    done = CliRunner().invoke(cli, ["check", str(directory)])
    assert done.exit_code == 2
    assert refusal in done.output + (done.stderr or "")
    return refusal


EVERY_DAY = {"llama", "qwen3", "gemma3"}  # vLLM imports a class in a process of its own: five seconds each


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f in EVERY_DAY else [pytest.mark.slow]) for f in families.FAMILIES]
)
def test_a_sound_checkpoint_of_each_family_is_admitted(sound: Callable[[str], Path], family: str) -> None:
    gate = families.GATES.get(family, "none")
    assert admit(Model(label=family, path=str(sound(family)))).checkpoint.gate == gate


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "missing", ["model.layers.1.mlp.down_proj.weight", "model.layers.1.self_attn.o_proj.weight", "lm_head.weight"]
)
def test_a_missing_tensor_is_refused(sound: Callable[[str], Path], tmp_path: Path, family: str, missing: str) -> None:
    assert f"1 tensor(s) missing: {missing}" in refused(odd.without(sound(family), tmp_path / "m", missing))


def test_a_tensor_stored_in_two_shards_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    twice = odd.sharded(sound("llama"), tmp_path / "m", "model.layers.0.self_attn.q_proj.weight")
    text = refused(twice)
    assert "q_proj.weight is stored twice" in text
    assert "model-00002-of-00002.safetensors" in text


def test_a_shard_that_the_index_does_not_list_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    stale = odd.sharded(sound("llama"), tmp_path / "m", "model.norm.weight", in_index=False)
    assert "model.norm.weight is stored twice" in refused(stale)


def test_an_output_matrix_beside_tied_embeddings_means_untied(sound: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint = inspect(odd.tied_but_different(sound("llama"), tmp_path / "m"))
    assert checkpoint.config["tie_word_embeddings"] is False
    from harness.run.plan_text import describe

    assert "embeddings               separate" in describe(Model(label="m", path=str(tmp_path / "m")))


def test_a_token_without_an_embedding_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    text = refused(odd.vocabulary_too_large(sound("llama"), tmp_path / "m"))
    assert "'beyond' with id 512" in text
    assert "512 rows" in text


def test_an_unknown_model_type_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    assert "'TelegraphForCausalLM'" in refused(odd.unknown_type(sound("llama"), tmp_path / "m"))


def test_check_without_a_tokenizer_does_not_succeed(sound: Callable[[str], Path], tmp_path: Path) -> None:
    assert "no tokenizer" in refused(odd.without_tokenizer(sound("llama"), tmp_path / "m"))


def test_a_quantised_checkpoint_says_so(sound: Callable[[str], Path], tmp_path: Path) -> None:
    from harness.run.plan_text import describe

    directory = odd.quantised(sound("llama"), tmp_path / "m")
    assert "quantised (gptq)" in describe(Model(label="m", path=str(directory)))


def test_a_declared_yarn_reaches_as_far_in_check_as_in_the_plan(sound: Callable[[str], Path], tmp_path: Path) -> None:
    from harness.config import ContextSetting
    from harness.rope import context
    from harness.run.plan_text import describe

    directory = odd.declared_yarn(sound("llama"), tmp_path / "m", factor=64, original=256)
    assert context.max_length(ContextSetting(label="native"), inspect(directory).config) == 16384
    assert "16,384 tokens" in describe(Model(label="m", path=str(directory)))


def test_a_wrapper_reads_its_language_model_and_an_unknown_length_is_unknown(
    sound: Callable[[str], Path], tmp_path: Path
) -> None:
    from harness.run.plan_text import describe

    directory = odd.wrapped(sound("llama"), tmp_path / "m")
    assert inspect(directory).max_position_embeddings == 256
    without = altered(sound("llama"), tmp_path / "n", max_position_embeddings=None)
    assert "unknown" in describe(Model(label="n", path=str(without)))
    with pytest.raises(GatedevalError, match="max_position_embeddings"):
        build(
            from_dict(
                {
                    "name": "n",
                    "models": [{"label": "n", "path": str(without)}],
                    "benchmarks": [{"lm_eval": "demo_words", "samples": 1}],
                }
            )
        ).check()


def test_yarn_on_a_wrapper_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint = inspect(odd.wrapped(sound("llama"), tmp_path / "m"))
    yarn = ContextSetting(label="YaRN", yarn=Yarn(factor=4, original_max_position_embeddings=256))
    with pytest.raises(GatedevalError, match="multimodal wrapper"):
        checkpoint.overrides_under(yarn)
    assert checkpoint.overrides_under(ContextSetting(label="native")).max_model_len == 256


def test_a_base_that_the_file_does_not_name_is_not_guessed(sound: Callable[[str], Path], tmp_path: Path) -> None:
    directory = altered(sound("llama"), tmp_path / "m", rope_parameters=None, rope_theta=None)
    checkpoint = inspect(directory)
    yarn = Yarn(factor=4, original_max_position_embeddings=256)
    with pytest.raises(GatedevalError, match="names no rope_theta"):
        checkpoint.overrides_under(ContextSetting(label="YaRN", yarn=yarn))
    named = checkpoint.overrides_under(ContextSetting(label="YaRN", yarn=yarn, rope_theta=1e4))
    assert named.hf_overrides["rope_parameters"]["rope_theta"] == 1e4
    assert not checkpoint.can_switch


def test_a_float32_checkpoint_runs_in_float32() -> None:
    assert running_dtype("auto", "float32") == "float32"
    assert running_dtype("auto", "bfloat16") == "bfloat16"
    assert running_dtype("bfloat16", "float32") == "bfloat16"
    assert running_dtype("auto", "I8") == "auto", "a quantised checkpoint: vLLM decides"


def hash_under(checkpoint: Checkpoint, setting: ContextSetting, dtype: str = "auto") -> str:
    encoder = Encoder(None, checkpoint, setting, 4096, dtype)  # type: ignore[arg-type]
    return encoder.hashes(Prompt("a", [1, 2, 3], 8), "fingerprint")[0]


def test_the_hash_has_the_encoding_that_is_applied(sound: Callable[[str], Path]) -> None:
    """Dynamic NTK's base depends on max_length, and a native row beside YaRN is another row than YaRN's."""
    checkpoint = inspect(sound("llama"))
    dynamic = [ContextSetting(label="d", dynamic=4, max_length=n) for n in (512, 1024)]
    assert hash_under(checkpoint, dynamic[0]) != hash_under(checkpoint, dynamic[1])
    native, yarn = (
        ContextSetting(label="n"),
        ContextSetting(label="y", yarn=Yarn(factor=4, original_max_position_embeddings=256)),
    )
    assert hash_under(checkpoint, native) != hash_under(checkpoint, yarn)
    assert hash_under(checkpoint, native, "auto") == hash_under(checkpoint, native, "float32")
    assert hash_under(checkpoint, native, "auto") != hash_under(checkpoint, native, "bfloat16")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_parameters": None, "rope_theta": "big"}, "rope_theta is 'big', not a number"),
        ({"rope_parameters": None, "rope_scaling": "yarn"}, "rope_scaling is 'yarn', not a mapping"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": "x"}}, "factor is 'x', not a number"),
    ],
)
def test_a_config_with_a_word_for_a_number_is_refused(
    sound: Callable[[str], Path], tmp_path: Path, config: dict[str, object], message: str
) -> None:
    checkpoint = inspect(altered(sound("llama"), tmp_path / "m", **config))
    assert checkpoint.rope
    with pytest.raises(GatedevalError, match=message):
        checkpoint.overrides_under(ContextSetting(label="n"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        # the text "false" is true in Python: a plain model would be taken for a gated one, and the reverse
        ({"headwise_attn_output_gate": "false"}, "headwise_attn_output_gate is 'false', not true or false"),
        ({"elementwise_attn_output_gate": "true"}, "elementwise_attn_output_gate is 'true', not true or false"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', not true or false"),
        ({"use_qk_norm": 2}, "use_qk_norm is 2, not true or false"),
        ({"hidden_size": -1}, "hidden_size is -1, not a positive whole number"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2', not a positive whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not a positive whole number"),
        ({"head_dim": 32.0}, "head_dim is 32.0, not a positive whole number"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6', not a number between 0 and 1"),
        ({"quantization_config": "gptq"}, "quantization_config is 'gptq', not a mapping"),
        ({"torch_dtype": "float99"}, "torch_dtype is 'float99', not an element type"),
        ({"dtype": 16}, "dtype is 16, not an element type"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures is 'Qwen3ForCausalLM', not a list of model classes"),
        ({"architectures": []}, "architectures is [], not a list of model classes"),
        ({"model_type": ["qwen3"]}, "model_type is ['qwen3'], not a name"),
        ({"text_config": "qwen3"}, "text_config is 'qwen3', not a mapping"),
        ({"vocab_size": 500}, "config.json says vocab_size 500, but model.embed_tokens.weight has 512 rows"),
        ({"vocab_size": "512"}, "vocab_size is '512', not a positive whole number"),
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "olmo2"])
def test_a_value_of_the_wrong_kind_is_refused_in_one_line(
    sound: Callable[[str], Path], tmp_path: Path, family: str, config: dict[str, object], message: str
) -> None:
    text = refused(altered(sound(family), tmp_path / "m", **config))
    assert message in text
    assert "\n" not in text


def test_an_output_matrix_of_another_vocabulary_is_refused(sound: Callable[[str], Path], tmp_path: Path) -> None:
    directory = odd.with_tensors(
        altered(sound("llama"), tmp_path / "m"), lambda t: t.update({"lm_head.weight": t["lm_head.weight"][:500]})
    )
    assert "vocab_size 512, but lm_head.weight has 500 rows" in refused(directory)


def test_values_that_published_files_have_are_taken(sound: Callable[[str], Path], tmp_path: Path) -> None:
    """null for "not given", torch's full name of a type, numbers for flags."""
    taken = altered(
        sound("qwen3"), tmp_path / "m", dtype=None, torch_dtype="torch.bfloat16", attention_bias=0, mlp_bias=None
    )
    assert inspect(taken).gate == "none"


def test_make_tiny_does_not_take_a_damaged_model_for_a_finished_one(tiny: Path, tmp_path: Path) -> None:
    for arm in ("baseline", "headwise", "elementwise"):
        shutil.copytree(tiny / arm, tmp_path / arm)
    assert make_tiny(tmp_path) == [], "whole ones are left as they are"
    weights = tmp_path / "headwise" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    with pytest.raises(GatedevalError, match=r"model\.safetensors: not a whole.*headwise is damaged: remove it"):
        make_tiny(tmp_path)
    weights.write_bytes(whole)
    (tmp_path / "headwise" / "tokenizer.json").unlink()
    (tmp_path / "headwise" / "tokenizer_config.json").unlink()
    with pytest.raises(GatedevalError, match=r"no tokenizer.*headwise is damaged"):
        make_tiny(tmp_path)
    shutil.rmtree(tmp_path / "headwise")
    shutil.copytree(tiny / "baseline", tmp_path / "headwise")
    with pytest.raises(GatedevalError, match="headwise: holds a checkpoint with gate none"):
        make_tiny(tmp_path)


def test_a_folder_in_place_of_the_weights_and_a_file_in_place_of_a_folder(
    sound: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = altered(sound("llama"), tmp_path / "m")
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").mkdir()
    with pytest.raises(GatedevalError, match="not a whole safetensors file"):
        inspect(directory)
    (tmp_path / "file").write_text("")
    with pytest.raises(GatedevalError, match="cannot be made"):
        make_tiny(tmp_path / "file")
