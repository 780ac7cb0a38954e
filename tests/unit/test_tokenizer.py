"""Special tokens and chat templates, on tokenizers with and without BOS or EOS (cases 5, 15, 27, 32)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import processors

from harness.models.tokenizer import Tokenizer
from harness.types import GatedevalError

CHAT = (
    "{% for m in messages %}<|bos|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
THINKING = CHAT.replace(
    "assistant: {%", "assistant: {% if enable_thinking %}<think>{% else %}<think></think>{% endif %}{%"
)
ALWAYS_THINKING = CHAT.replace("assistant: {%", "assistant: <think>{%")


@pytest.fixture(scope="module")
def folders(shared: Path) -> Path:
    return shared / "oracles/ruler"


def changed(source: Path, target: Path, **config: object) -> Path:
    shutil.copytree(source, target)
    target.chmod(0o755)
    file = target / "tokenizer_config.json"
    file.chmod(0o644)
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return target


def test_bos_once_where_there_is_one(folders: Path) -> None:
    tokenizer = Tokenizer(folders / "tokenizer_bpe4k_bos")
    [bos] = tokenizer.prefix_ids
    ids = tokenizer.encode("The green grass")
    assert ids.count(bos) == 1
    assert ids[0] == bos
    assert tokenizer.encode("<|bos|>The green grass") == ids
    assert tokenizer.encode("The green grass", special=False) == ids[1:]


def test_no_bos_where_there_is_none(folders: Path) -> None:
    tokenizer = Tokenizer(folders / "tokenizer_bpe4k")
    assert tokenizer.prefix_ids == ()
    assert tokenizer.encode("The green grass") == tokenizer.encode("The green grass", special=False)


def test_an_eos_that_the_tokenizer_appends_is_never_sent(folders: Path, tmp_path: Path) -> None:
    folder = changed(folders / "tokenizer_bpe4k_bos", tmp_path / "t")
    raw = Raw.from_file(str(folder / "tokenizer.json"))
    ids = {name: raw.token_to_id(name) for name in ("<|bos|>", "<|endoftext|>")}
    raw.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|endoftext|>", special_tokens=list(ids.items())
    )
    (folder / "tokenizer.json").chmod(0o644)
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("The grass")[0] == ids["<|bos|>"]
    assert ids["<|endoftext|>"] not in tokenizer.encode("The grass")


def test_a_prefix_that_ends_in_a_space_leaves_the_answer_natural(folders: Path) -> None:
    """RULER's vt prefix ends in a space; what is sent is the encoding of the whole prompt, decided once."""
    tokenizer = Tokenizer(folders / "tokenizer_bpe4k")
    prompt = "they are: "
    assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


def test_chat_has_one_bos_and_continues_the_answer(folders: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(changed(folders / "tokenizer_bpe4k_bos", tmp_path / "t", chat_template=CHAT))
    text = tokenizer.chat([{"role": "user", "content": "Find a|b in 'are'."}], answer_prefix="They are: ")
    assert text == "<|bos|>user: Find a|b in 'are'.\nassistant: They are: "
    assert tokenizer.encode(text).count(tokenizer.prefix_ids[0]) == 1


def test_thinking_is_off_or_the_template_is_refused(folders: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}]
    switch = Tokenizer(changed(folders / "tokenizer_bpe4k", tmp_path / "a", chat_template=THINKING))
    assert switch.chat(messages).endswith("<think></think>")
    assert switch.chat(messages, thinking=True).endswith("<think>")
    always = Tokenizer(changed(folders / "tokenizer_bpe4k", tmp_path / "b", chat_template=ALWAYS_THINKING))
    with pytest.raises(GatedevalError, match="opens <think> although thinking is off"):
        always.chat(messages)


def test_no_template_and_no_tokenizer(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="no chat template"):
        Tokenizer(folders / "tokenizer_bpe4k").chat([{"role": "user", "content": "q"}])
    with pytest.raises(GatedevalError, match="no readable tokenizer"):
        Tokenizer(tmp_path)


def test_same_ids_as_the_generator_counts(folders: Path) -> None:
    from tasks.ruler import load_tokenizer

    text = "Some special magic numbers are hidden. They are: "
    for name in ("tokenizer_bpe4k", "tokenizer_bpe4k_bos"):
        assert Tokenizer(folders / name).encode(text) == load_tokenizer(folders / name).encode(text)
