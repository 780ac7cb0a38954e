"""Tokenizers as other people publish them, each with one oddity, in the folder of a tiny checkpoint with room for them.

`ODD` maps a name to (function that changes the folder, words of the refusal; None where it has to be evaluated).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from tests.support.engines import altered

ROWS = 4224
"""Rows of the embedding: more than the tiny checkpoint's tokenizer has entries."""
END = "<|end|>"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
TRIMMED = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}\n\n{% endfor %}assistant:"
GLUED = "{% for m in messages %}({{ m['content'] }}){% endfor %}"
DATED = "Today is {{ strftime_now('%d %B %Y') }}.\n" + PLAIN
SWITCHED = CHATML.replace(
    "assistant\n{%", "assistant\n{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{%"
)
ALWAYS_THINKING = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + PLAIN

Change = Callable[[Path], None]


def roomy(source: Path, target: Path) -> Path:
    """A copy of a tiny checkpoint whose embedding has `ROWS` rows."""
    import torch

    def padded(tensors: dict[str, Any]) -> dict[str, Any]:
        name = "model.embed_tokens.weight"
        more = torch.zeros(ROWS - tensors[name].shape[0], tensors[name].shape[1])
        return {**tensors, name: torch.cat([tensors[name], more])}

    return altered(source, target, padded, vocab_size=ROWS)


def settings(**facts: Any) -> Change:
    """Entries of tokenizer_config.json."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))

    return change


def _edited(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "tokenizer.json"
    facts = json.loads(file.read_text())
    edit(facts)
    file.write_text(json.dumps(facts))


def special_tokens(*, bos: bool, eos: bool, **facts: Any) -> Change:
    """A post-processor that puts END before or after a text, whatever the settings say about it."""

    def change(folder: Path) -> None:
        from tokenizers import Tokenizer, processors

        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if bos or eos:
            single = f"{f'{END} ' if bos else ''}$A{f' {END}' if eos else ''}"
            made.post_processor = processors.TemplateProcessing(
                single=single, special_tokens=[(END, made.token_to_id(END))]
            )
        made.save(str(folder / "tokenizer.json"))
        settings(bos_token=END, **facts)(folder)

    return change


def added(*tokens: str, special: bool = False, template: str | None = None) -> Change:
    """Tokens that are found in a text before it is split into words."""

    def change(folder: Path) -> None:
        from tokenizers import AddedToken, Tokenizer

        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
        made.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
        made.save(str(folder / "tokenizer.json"))
        if template is not None:
            settings(chat_template=template)(folder)

    return change


def _no_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{not JSON")


def _no_vocabulary(folder: Path) -> None:
    def empty(facts: dict[str, Any]) -> None:
        facts["model"].update(vocab={}, merges=[])
        facts["added_tokens"] = []

    _edited(folder, empty)


def _cut_short(folder: Path) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:2000])


def _truncation(folder: Path) -> None:
    def left_over(facts: dict[str, Any]) -> None:
        facts["truncation"] = {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0}

    _edited(folder, left_over)


def tekken_only(folder: Path) -> None:
    """mistral-common's file in place of tokenizer.json. Its 131,072 ids need a checkpoint with as many rows."""
    import mistral_common

    for file in folder.glob("tokenizer*"):
        file.unlink()
    data = Path(mistral_common.__file__).parent / "data"
    shutil.copy(next(iter(sorted(data.glob("tekken*.json")))), folder / "tekken.json")


_ADDS = (None, True, False)
ODD: dict[str, tuple[Change, str | None]] = {
    **{
        f"post-processor bos {bos} eos {eos}, add_bos_token {add_bos}, add_eos_token {add_eos}": (
            special_tokens(
                bos=bos,
                eos=eos,
                **({} if add_bos is None else {"add_bos_token": add_bos}),
                **({} if add_eos is None else {"add_eos_token": add_eos}),
            ),
            None,
        )
        for bos, eos, add_bos, add_eos in product((True, False), (True, False), _ADDS, (None, True))
    },
    "byte-level as Llama": (settings(tokenizer_class="LlamaTokenizerFast"), "decoded as"),
    "byte-level, class of the model type": (settings(tokenizer_class=None), None),
    "settings that are no JSON": (_no_json, "not valid JSON"),
    "settings of another type": (settings(added_tokens_decoder={"x": {}}), "added_tokens_decoder"),
    "no vocabulary": (_no_vocabulary, "encodes 'a' to nothing"),
    "cut short": (_cut_short, "not a tokenizer.json"),
    "truncation left over from training": (_truncation, None),
    "tags as special tokens": (added("<think>", "</think>", special=True), None),
    "chatml": (added("<|im_start|>", "<|im_end|>", special=True, template=CHATML), None),
    "template in words": (settings(chat_template=PLAIN), None),
    "template that trims": (settings(chat_template=TRIMMED, bos_token=END), None),
    "template without a word": (settings(chat_template=GLUED), None),
}
