"""The demo's training: documents and their marks, equal starts; interrupted, it is the same training."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.models.reference import Reference, Trace
from harness.store.files import RunLock
from harness.types import GatedevalError
from tasks.demo import recipe, training
from tasks.demo.documents import Documents
from tasks.demo.drafts import DIGIT, KEY_END, KEY_START, LETTER, OPTION, Document
from tasks.demo.recipe import ARMS, EVERYTHING, STAGES, WIDTHS, model_config
from tasks.demo.start import initialise
from tasks.demo.tokens import train_tokenizer
from tasks.demo.training import Trainer, attention_weight, schedule
from tests.support import ROOT

TOKENIZER = train_tokenizer()
DOCUMENTS = Documents(TOKENIZER)


def text(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids))


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERYTHING)
@pytest.mark.parametrize("length", [256, 2048])
def test_documents_fit_and_are_the_same_each_time(kind: str, length: int) -> None:
    first, again = (DOCUMENTS.draw(random.Random(3), length, [kind]) for _ in range(2))
    assert first == again
    assert 0 < len(first.ids) <= length
    assert len(first.answer) == len(first.ids)
    assert any(first.answer)


@pytest.mark.parametrize("kind", ["list", "short", "long", "full"])
def test_needle_marks_point_at_the_same_number_and_key(kind: str) -> None:
    for seed in range(40):
        document = DOCUMENTS.draw(random.Random(seed), 256, [kind])
        ids = document.ids
        assert document.looks[DIGIT]
        for before, digit in document.looks[DIGIT]:
            assert digit < before
            assert ids[before + 1] == ids[digit]  # the token that is to come is the one that is looked at
            assert document.answer[before + 1]
        for (at, start), (same, end) in zip(document.looks[KEY_START], document.looks[KEY_END], strict=True):
            assert at == same
            assert start <= end < at
            assert "-" in text(ids[start : end + 1])
            assert text(ids[at : at + 1]) == " " or text(ids[at : at + 1]).isdigit()


def test_choice_marks_point_at_letter_kind_and_option() -> None:
    document = DOCUMENTS.draw(random.Random(0), 256, ["choice"])
    ids = document.ids
    colons = [query for query, _ in document.looks[OPTION]]
    assert len(colons) >= 5
    for colon, option in document.looks[OPTION]:
        assert text(ids[colon - 1 : colon + 1]) == "Answer:"
        letter = next(key for query, key in document.looks[LETTER] if query == option)
        assert f" {text(ids[letter : letter + 1])}" == text(ids[colon + 1 : colon + 2])  # the answer is its letter
    kinds = [text(ids[key : key + 2]) for query, key in document.looks[LETTER] if query in colons]
    assert all(kind.endswith("?") for kind in kinds)


def learned(document: Document) -> list[str]:
    return [TOKENIZER.id_to_token(t) for t, wanted in zip(document.ids, document.answer, strict=True) if wanted]


def test_whole_answers_are_learned_full_stop_and_end_included() -> None:
    document = DOCUMENTS.draw(random.Random(1), 256, ["full"])
    assert "".join(learned(document)[1:8]).isdigit()
    assert document.answer[-1]
    assert document.ids[-1] == 0
    assert text(document.ids[-4:-1]).endswith(".")


@pytest.mark.parametrize("kind", ["list", "short", "long", "full"])
def test_what_follows_an_answer_is_an_end_or_not_learned(kind: str) -> None:
    on, off = (Documents(TOKENIZER, stopping=stopping) for stopping in (True, False))
    followed = set()
    for seed in range(30):
        document = on.draw(random.Random(seed), 256, [kind])
        for at, wanted in enumerate(document.answer):
            if wanted and text(document.ids[at - 1 : at]) == ".":
                followed.add(document.ids[at])
        assert document.ids[-1] == 0
    assert followed == {0}
    if kind != "full":  # without it the next line is learned
        assert "Ċ" in learned(off.draw(random.Random(0), 256, [kind]))


def test_sums_are_learned_up_to_where_lm_eval_stops() -> None:
    words = learned(DOCUMENTS.draw(random.Random(0), 256, ["words"]))
    assert words.count("Question") == words.count(":") >= 3


# --- starts ----------------------------------------------------------------------------------------------------------


def test_arms_start_alike_and_are_of_one_size() -> None:
    models = {}
    for arm, gate in ARMS.items():
        models[arm] = Reference(model_config(gate, STAGES[0], 1280))
        initialise(models[arm], 5)
    sizes = [sum(p.numel() for p in m.parameters()) for m in models.values()]
    assert max(sizes) - min(sizes) < 0.002 * min(sizes)
    base = models["baseline"].state_dict()
    for arm, gate in ARMS.items():
        for name, tensor in models[arm].state_dict().items():
            if "q_proj" in name:
                layout = models[arm].model.layers[0].self_attn.layout  # type: ignore[union-attr, index]
                tensor = tensor[torch.from_numpy(layout.query_rows)]  # type: ignore[union-attr, index]
            if "mlp.down" in name:
                assert torch.equal(tensor, base[name][:, : WIDTHS[gate]])
            elif "mlp" in name:
                assert torch.equal(tensor, base[name][: WIDTHS[gate]])
            else:
                assert torch.equal(tensor, base[name])


@pytest.mark.parametrize("arm", ["headwise", "elementwise"])
def test_gates_are_open_at_the_start(arm: str) -> None:
    model, trace = Reference(model_config(ARMS[arm], STAGES[0], 1280)), Trace()
    initialise(model, 0)
    model(torch.tensor([DOCUMENTS.draw(random.Random(0), 256, ["full"]).ids]), trace=trace)
    assert 0.8 < float(trace.gate_mean().mean().detach()) < 0.97


# --- training --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of a few steps."""
    batch = recipe.Batch(length=256, count=2, kinds=EVERYTHING)
    stages = (
        dataclasses.replace(STAGES[0], steps=6, taught=3, looked_up_first=4, batches=(batch,)),
        dataclasses.replace(STAGES[2], steps=4, batches=(dataclasses.replace(batch, length=320, count=1), batch)),
    )
    for module in (recipe, training):
        monkeypatch.setattr(module, "STAGES", stages)
    monkeypatch.setattr(training, "SAVE_EVERY", 2)


class Killed(Exception):
    pass


@pytest.mark.extended
@pytest.mark.usefixtures("small")
def test_an_interrupted_training_is_the_same_training(tmp_path: Path) -> None:
    Trainer("headwise", tmp_path / "whole", compiled=False).run()

    def kill_after(tokens: int) -> None:
        def tell(done: int) -> None:
            if done >= tokens:
                raise Killed

        with pytest.raises(Killed):
            Trainer("headwise", tmp_path / "parts", compiled=False).run(tell)

    per_step = 2 * 256
    for steps in (3, 5, 8):  # within the first stage, twice, and in the second
        kill_after(steps * per_step)
    Trainer("headwise", tmp_path / "parts", compiled=False).run()
    for stage in ("keys", "long"):
        whole, parts = (tmp_path / name / stage / "model.safetensors" for name in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()
    config = json.loads((tmp_path / "parts/long/config.json").read_text())
    assert (config["rope_theta"], config["max_position_embeddings"]) == (1e6, 2048)


@pytest.mark.usefixtures("small")
def test_another_recipe_is_not_continued(tmp_path: Path) -> None:
    Trainer("baseline", tmp_path, compiled=False).run()
    with pytest.raises(GatedevalError, match="another recipe or seed"):
        Trainer("baseline", tmp_path, seed=1, compiled=False)


def test_an_arm_that_is_being_trained_is_not_trained_twice(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "lock")
    command = [sys.executable, "-m", "tasks.demo", "one", "baseline", str(tmp_path), "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    lock.release()
    assert done.returncode != 0
    assert f"baseline: {tmp_path} is being written by another process (pid {os.getpid()} on" in done.stderr
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


def test_schedules() -> None:
    assert [round(schedule(step, 100), 3) for step in (0, 14, 29, 69, 85, 99)] == [0.033, 0.5, 1.0, 1.0, 0.5, 0.033]
    assert [attention_weight(x) for x in (0.0, 0.49, 0.5, 0.7)] == [1.0, 1.0, 0.15, 0.15]
    assert attention_weight(0.9) == pytest.approx(0.075)
