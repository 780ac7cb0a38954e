"""What the self-check of an engine accepts and refuses, on computed log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.engine.requests import SelfCheckError
from harness.engine.self_check import BOUNDS, TOP, Answer, Probe, first_pass, judge, second_pass

VOCABULARY = 1000
Logits = Callable[[tuple[int, ...]], np.ndarray]


def sound(ids: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(list(ids)).normal(size=VOCABULARY)


def answers(logits: Logits, noise: float = 0.0, vocabulary: int = VOCABULARY) -> list[Answer]:
    """Both passes, answered from `logits`; the second pass `noise` nats off."""

    def answer(probe: Probe, off: float) -> Answer:
        row = logits(probe.ids)
        with np.errstate(invalid="ignore"):
            row = row - np.logaddexp.reduce(row) + off
        asked = probe.asked or tuple(int(t) for t in np.argsort(-row)[:TOP])
        return probe, {token: float(row[token]) for token in asked}

    first = [answer(probe, 0.0) for probe in first_pass(vocabulary, 512, 128)]
    return [*first, *(answer(probe, noise) for probe in second_pass(first, vocabulary))]


def test_a_sound_model_passes() -> None:
    judge(answers(sound), BOUNDS["float32"])
    judge(answers(sound, noise=0.3), BOUNDS["bfloat16"])


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda ids: np.full(VOCABULARY, math.nan), "not finite"),
        (lambda ids: np.zeros(VOCABULARY), "every token has the same probability"),
        (lambda ids: sound((1,)), "the same after every prompt"),
        (lambda ids: sound(ids[-1:]), "depend on the last token alone"),
    ],
    ids=["NaN", "uniform", "constant", "no attention"],
)
def test_a_broken_model_is_named(logits: Logits, message: str) -> None:
    with pytest.raises(SelfCheckError, match=message):
        judge(answers(logits), BOUNDS["float32"])


DAMAGE: dict[str, tuple[Callable[[dict], None], str]] = {
    "NaN in one o_proj": (lambda t: t["model.layers.1.self_attn.o_proj.weight"].view(-1)[:1].fill_(math.nan), "finite"),
    "all o_proj zero": (lambda t: [t[k].zero_() for k in t if "o_proj" in k], "attention has no effect"),
    "embedding zero": (lambda t: t["model.embed_tokens.weight"].zero_(), "every token has the same probability"),
    "everything zero": (lambda t: [v.zero_() for v in t.values()], "every token has the same probability"),
}


@pytest.mark.parametrize("gate", ["baseline", "headwise", "elementwise"])
@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_verdicts_on_models_in_plain_torch(tiny: Path, gate: str, damage: str | None) -> None:
    """The tiny models, sound and damaged: what the check says does not rest on invented logits."""
    import torch

    from harness.models.reference import load

    model = load(tiny / gate)
    tensors = model.state_dict()
    with torch.no_grad():
        if damage:
            DAMAGE[damage][0](tensors)
        rows: dict[tuple[int, ...], np.ndarray] = {}

        def logits(ids: tuple[int, ...]) -> np.ndarray:
            if ids not in rows:
                rows[ids] = model(torch.tensor([ids]))[0, -1].double().numpy()
            return rows[ids]

        given = answers(logits, vocabulary=model.config["vocab_size"])
    if damage is None:
        judge(given, BOUNDS["float32"])
        return
    with pytest.raises(SelfCheckError, match=DAMAGE[damage][1]):
        judge(given, BOUNDS["float32"])


def test_cache_and_list_widths_must_not_change_a_log_probability() -> None:
    with pytest.raises(SelfCheckError, match="would depend on the batch or on the cache"):
        judge(answers(sound, noise=0.002), BOUNDS["float32"])


def test_a_padded_minus_infinity_is_found() -> None:
    """vLLM pads the option lists of a batch with token 0 at -inf."""
    given = answers(sound)
    broken = [(p, {**row, 0: -math.inf}) if len(p.asked) == 3 else (p, row) for p, row in given]
    with pytest.raises(SelfCheckError, match="not finite"):
        judge(broken, BOUNDS["float32"])


def test_probes_are_short_mixed_and_fit() -> None:
    """A few hundred tokens: the check costs less than a second. One batch has lists of three widths, with token 0."""
    for max_length, block in ((512, 128), (32, 16), (2, 16), (131072, 16)):
        first = first_pass(VOCABULARY, max_length, block)
        second = second_pass([(p, dict.fromkeys(range(1, 1 + TOP), -1.0)) for p in first], VOCABULARY)
        probes = [*first, *second]
        assert all(1 <= len(p.ids) < max_length for p in probes)
        assert {len(p.asked) for p in first} == {0}, "vLLM answers a batch of both kinds wrongly"
        assert {len(p.asked) for p in second} == {TOP, 3, 48}
        assert all(0 in p.asked for p in second if len(p.asked) != TOP)
        assert sum(len(p.ids) for p in probes) < 4 * (2 * 24 + max(24, block) + 17) + 1
        assert all(0 <= token < VOCABULARY for p in probes for token in p.ids)
    zero, one, two = first_pass(VOCABULARY, 512, 128)[:3]
    assert zero.ids[-1] == one.ids[-1] != two.ids[-1]
    assert zero.ids[:-1] != one.ids[:-1]
    assert len(two.ids) > 128, "the second pass finds a block in the cache"


def test_a_context_of_two_tokens_has_no_room_for_a_context_to_depend_on() -> None:
    first = [(p, {t: float(sound(p.ids)[t]) for t in range(TOP)}) for p in first_pass(VOCABULARY, 2, 16)]
    judge(first, BOUNDS["float32"])
