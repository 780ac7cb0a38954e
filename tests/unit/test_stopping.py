"""Which token ids end an answer, and when they are part of its content hash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.config import ContextSetting, Model
from harness.engine.encoding import Encoder
from harness.engine.requests import Prompt, Question, SampleRequest
from harness.models.admission import admit
from harness.models.checkpoint import inspect
from harness.models.stopping import stop_ids
from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError

NATIVE = ContextSetting(label="native")


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A checkpoint whose config.json and tokenizer name id 0, <|end|>."""
    shutil.copytree(tiny / "baseline", tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **entries: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **entries}))


def ids(model: Path) -> tuple[int, ...]:
    return stop_ids(inspect(model), Tokenizer(model))


def hash_of(model: Path, **sample: Any) -> str:
    encoder = Encoder(Tokenizer(model), inspect(model), NATIVE, 512, "float32")
    request = encoder.encode(SampleRequest(id="0", label="s", **sample))
    if isinstance(request, Prompt):
        assert request.stop_ids == ids(model), "what is hashed is what is sent"
    return encoder.hashes(request, "fingerprint")[0]


def test_the_tokenizer_s_end_and_the_files_count(model: Path) -> None:
    assert ids(model) == (0,)
    edit(model / "generation_config.json", eos_token_id=[7, 0, 9])
    assert ids(model) == (0, 7, 9)
    edit(model / "generation_config.json", eos_token_id=7)
    assert ids(model) == (0, 7)
    edit(model / "config.json", eos_token_id=3)
    assert ids(model) == (0, 7), "where there is a generation_config.json, config.json does not count"
    (model / "generation_config.json").unlink()
    assert ids(model) == (0, 3)


def test_the_tokenizer_s_end_in_every_form_of_its_settings(model: Path) -> None:
    file = model / "tokenizer_config.json"
    token = Tokenizer(model).decode([300]).strip()
    id = Tokenizer(model).fast.token_to_id(token)
    edit(file, eos_token=token)
    assert Tokenizer(model).eos_id == id
    edit(file, eos_token={"content": token, "__type": "AddedToken"})
    assert Tokenizer(model).eos_id == id
    edit(file, eos_token=None)
    assert Tokenizer(model).eos_id is None
    edit(file, eos_token="<|end|>")
    edit(model / "special_tokens_map.json", eos_token="<|end|>")
    assert Tokenizer(model).eos_id == 0
    for form in ("<|end|>", None):
        edit(file, eos_token=form)
        (model / "special_tokens_map.json").unlink(missing_ok=True)
        assert Tokenizer(model).eos_id == Tokenizer(model).hf.eos_token_id, "as transformers has it"
    assert stop_ids(inspect(model), Tokenizer(model)) == (0,), "config.json's"


def test_an_id_that_the_model_cannot_generate_is_left_out(model: Path) -> None:
    """The engine would refuse to look for it, and no answer depends on it."""
    edit(model / "generation_config.json", eos_token_id=[0, 151_645])
    assert ids(model) == (0,)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"eos_token_id": "</s>"}', '{"eos_token_id": [true]}', '{"eos_token_id": -1}']
)
def test_a_generation_config_that_cannot_be_read_is_one_error(model: Path, text: str) -> None:
    (model / "generation_config.json").write_text(text)
    with pytest.raises(GatedevalError, match=r"generation_config\.json: ") as error:
        ids(model)
    assert "\n" not in str(error.value)
    with pytest.raises(GatedevalError, match=r"generation_config\.json: "):
        admit(Model(label="m", path=str(model)))


def test_the_hash_of_a_generated_answer_has_the_stop_ids_that_config_json_does_not_name(model: Path) -> None:
    prompt, options = {"prompt": "one two"}, {"options": (("one", " two"), ("one", " three"))}
    before = hash_of(model, **prompt), hash_of(model, **options)
    edit(model / "generation_config.json", eos_token_id=0, temperature=0.6)
    assert hash_of(model, **prompt) == before[0], "the hashes of older runs stay valid"
    edit(model / "generation_config.json", eos_token_id=[0, 7])
    assert hash_of(model, **prompt) != before[0]
    assert hash_of(model, **options) == before[1], "options are compared by their ids: nothing is stopped"
    (model / "generation_config.json").unlink()
    edit(model / "tokenizer_config.json", eos_token=None)
    assert hash_of(model, **prompt) == before[0], "config.json names it still"
    encoder = Encoder(Tokenizer(model), inspect(model), NATIVE, 512, "float32")
    assert isinstance(encoder.encode(SampleRequest(id="0", label="s", options=(("one", " two"),))), Question)
