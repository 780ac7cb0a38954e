"""The ids that are sent: those of transformers, one BOS or none, no EOS behind a prompt, also in chat templates."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import models, processors

from harness.models.thinking import Thinking
from harness.models.tokenizer import Tokenizer, load_tokenizer
from harness.types import GatedevalError
from tests.support import ROOT
from tests.support import tokenizers as made

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
    assert switch.chat(messages, thinking=Thinking(True)).endswith("<think>")
    always = Tokenizer(changed(folders / "tokenizer_bpe4k", tmp_path / "b", chat_template=ALWAYS_THINKING))
    with pytest.raises(GatedevalError, match="opens <think> although thinking is off"):
        always.chat(messages)


def test_a_response_that_is_begun_leaves_no_place_for_a_thought(folders: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]
    tokenizer = Tokenizer(changed(folders / "tokenizer_bpe4k", tmp_path / "a", chat_template=THINKING))
    assert tokenizer.render(messages, False).endswith("<think></think>The answer is")
    with pytest.raises(GatedevalError, match="cannot think before it answers"):
        tokenizer.render(messages, False, thinking=Thinking(True, 100))


def test_no_template_and_no_tokenizer(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(GatedevalError, match="no chat template"):
        Tokenizer(folders / "tokenizer_bpe4k").chat([{"role": "user", "content": "q"}])
    with pytest.raises(GatedevalError, match="no readable tokenizer"):
        Tokenizer(tmp_path)


KINDS = ["qwen", "gpt2", "llama", "unigram", "unigram_plain", "crossing"]
FOLDERS = ["oracles/ruler/tokenizer_bpe4k", "oracles/ruler/tokenizer_bpe4k_bos", "demo"]
SETTINGS: dict[str, dict[str, object]] = {
    "as it is": {},
    "add_bos_token false": {"add_bos_token": False},
    "add_bos_token true": {"add_bos_token": True},
    "add_eos_token": {"add_eos_token": True},
    "pad token of its own": {"pad_token": "<|pad|>"},
    "tokens that only the settings name": {
        "extra_special_tokens": ["<|extra|>", "<think>"],
        "added_tokens_decoder": {"99999": {"content": "</think>", "special": False, "lstrip": True}},
    },
    "BOS that takes the space before it": {
        "bos_token": {"__type": "AddedToken", "content": "<|bos|>", "lstrip": True, "special": True}
    },
}


def texts() -> list[str]:
    """Odd white space, other scripts, special tokens written out; then random joints of such words."""
    rng = random.Random(3)
    words = ["The", "co-op.", "12,", "<|bos|>", "<s>", "</s>", "中文", "e\u0301", "\u00a0nb", "\ttab", "🙂"]
    words += ["<|endoftext|>", "<|end|>", "<|extra|>", "<think>", "</think>", "<|pad|>"]
    fixed = [
        "",
        "a",
        " a",
        "  a\n\n b \n",
        "\tx\r\ny\u00a0z",
        "<|bos|>The",
        " <|bos|>x",
        "\u2028x\u200b\x00y",
        "1234567 89",
    ]
    joints = [" ", "", "\n", "\n\n", "  ", " \n"]
    return fixed + [
        "".join(rng.choice(words) + rng.choice(joints) for _ in range(rng.randint(1, 12))) for _ in range(200)
    ]


def sent_by_transformers(hf: Any, text: str) -> list[int]:
    """transformers' ids without what it puts behind the text, and with one BOS where it puts one before."""
    plain, full = hf("a", add_special_tokens=False)["input_ids"], hf("a")["input_ids"]
    start = next(i for i in range(len(full)) if full[i : i + len(plain)] == plain)
    ids: list[int] = hf(text, add_special_tokens=False)["input_ids"]
    return ids if ids[:start] == full[:start] else full[:start] + ids


def same_as_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    hf, ours = AutoTokenizer.from_pretrained(str(folder)), Tokenizer(folder)
    for text in texts():
        ids = ours.encode(text)
        assert ids == sent_by_transformers(hf, text), text
        assert ours.encode(text, special=False) == hf(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == hf.decode(ids, skip_special_tokens=True), text
        assert ours.count(text) == len(ours.encode(text, special=False))
    assert ours.counts(texts()) == [ours.count(text) for text in texts()]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    getattr(made, kind)().save(str(tmp_path / "tokenizer.json"))
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if kind == "llama":
        config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    same_as_transformers(tmp_path)
    if kind == "qwen":  # its own class builds the tokenizer anew from vocabulary and merges
        named = {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "bos_token": None,
            "pad_token": "<|endoftext|>",
        }
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
        same_as_transformers(tmp_path)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_ids_are_those_of_transformers_whatever_the_settings_say(
    shared: Path, folder: str, settings: str, tmp_path: Path
) -> None:
    source = ROOT / "tasks/demo/models/baseline/long" if folder == "demo" else shared / folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path / name)
        (tmp_path / name).chmod(0o644)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **SETTINGS[settings]}))
    same_as_transformers(tmp_path)


def test_counting_and_sending_import_neither_torch_nor_transformers(folders: Path) -> None:
    code = (
        "import sys; from harness.models.tokenizer import Tokenizer; "
        f"t = Tokenizer({str(folders / 'tokenizer_bpe4k_bos')!r}); t.decode(t.encode('The grass')); t.count('a'); "
        "heavy = {'torch', 'transformers', 'vllm', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_path_is_loaded_once_until_its_files_change(folders: Path, tmp_path: Path) -> None:
    folder = changed(folders / "tokenizer_bpe4k", tmp_path / "t")
    first = load_tokenizer(folder)
    assert load_tokenizer(str(folder)) is first is load_tokenizer(first)
    os.utime(folder / "tokenizer_config.json", ns=(1, 1))
    assert load_tokenizer(folder) is not first


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    for source, message in {
        "./absent": "neither a folder with a tokenizer, nor a tokenizer.json, nor a hub id",
        object(): "an object without `encode`",
    }.items():
        with pytest.raises(GatedevalError, match=message):
            Tokenizer(source)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(GatedevalError, match="no readable tokenizer"):
        Tokenizer(tmp_path)
    Raw(models.WordLevel({"b": 0}, unk_token="b")).save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).encode("a") == [0]
    Raw(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(GatedevalError, match="encodes 'a' to nothing"):
        Tokenizer(tmp_path)
