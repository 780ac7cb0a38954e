"""Train one model of the demo ("arm"): next-token loss on the answers, at first also a loss on attention weights.

Training runs in one thread and is deterministic for a seed on one machine. After a kill, it continues from its last
state with the same documents. One arm is one process; `tasks.demo.__main__` runs several.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.models.bpe import save_tokenizer
from harness.models.reference import Reference, Trace
from harness.types import GatedevalError
from tasks.demo.documents import Documents
from tasks.demo.drafts import DIGIT, DIGIT_TOO, KEY_END, KEY_START, LETTER, OPTION, PREVIOUS, Document
from tasks.demo.recipe import ARMS, LOOKED_UP, STAGES, Batch, Stage, as_dict, model_config
from tasks.demo.start import initialise
from tasks.demo.tokens import train_tokenizer

SAVE_EVERY = 100  # steps; a kill loses the steps since the last save
_SMOOTH = 0.95


class Trainer:
    """Trains one arm. `directory` holds everything that it needs to continue.

    Files there: `state.pt` (weights, optimiser state, stage and step), `log.jsonl` (the loss curve), and one checkpoint
    folder per finished stage, named after it.

    Raises:
        GatedevalError: the state in the directory belongs to another recipe or seed.
    """

    def __init__(self, arm: str, directory: Path, seed: int = 0, *, compiled: bool = True) -> None:
        torch.set_num_threads(1)
        self.arm, self.directory, self.seed, self.compiled = arm, directory, seed, compiled
        self.recipe = as_dict(seed)
        self.tokenizer = train_tokenizer()
        directory.mkdir(parents=True, exist_ok=True)
        self.stage, self.step, self.seconds, self.seen = 0, 0, 0.0, 0
        self.curve: dict[str, float] = {}
        torch.manual_seed(seed)
        self.model = Reference(self._config(STAGES[0]))
        initialise(self.model, seed)
        self.optimizer = self._optimizer()
        self._resume()

    def _config(self, stage: Stage) -> dict[str, Any]:
        return model_config(ARMS[self.arm], stage, self.tokenizer.get_vocab_size())

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)

    # --- continuing --------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        file = self.directory / "state.pt"
        if not file.exists():
            return
        state = torch.load(file, weights_only=True)
        if state["recipe"] != json.dumps(self.recipe):
            raise GatedevalError(f"{file} was made by another recipe or seed; give a new directory, or remove this one")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stage, self.step, self.seconds, self.seen = (state[k] for k in ("stage", "step", "seconds", "seen"))
        self.curve = state["curve"]

    def _save(self) -> None:
        state = {
            "recipe": json.dumps(self.recipe),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{k: getattr(self, k) for k in ("stage", "step", "seconds", "seen", "curve")},
        }
        fresh = self.directory / "state.pt.new"
        torch.save(state, fresh)
        os.replace(fresh, self.directory / "state.pt")

    # --- training ----------------------------------------------------------------------------------------------------

    def run(self, on_progress: Callable[[int], None] = lambda tokens: None) -> None:
        """Train to the end of the last stage. Each step calls `on_progress(tokens done so far)`."""
        on_progress(self.seen)
        while self.stage < len(STAGES):
            stage = STAGES[self.stage]
            self._stage(stage, on_progress)
            self._checkpoint(stage)
            self.stage, self.step = self.stage + 1, 0
            if self.stage < len(STAGES):
                self.model.config = self._config(STAGES[self.stage])
                self.optimizer = self._optimizer()
            self._save()

    def _stage(self, stage: Stage, on_progress: Callable[[int], None]) -> None:
        self.model.config = self._config(stage)
        tables = {b.length: self.model.cos_sin(b.length) for b in stage.batches}
        plain, supervised = self._forward(traced=False), self._forward(traced=True)
        documents_of_stage = Documents(self.tokenizer, stopping=stage.stopping)
        while self.step < stage.steps:
            began = time.monotonic()
            batch, left = stage.batches[self.step % len(stage.batches)], stage.taught - self.step
            # A step's documents depend on seed, stage and step only: all arms, and a resumed training, see the same.
            rng = random.Random(f"{self.seed}/{stage.stream}/{self.step}")
            kinds = LOOKED_UP if self.step < stage.looked_up_first else batch.kinds
            documents = [documents_of_stage.draw(rng, batch.length + 1, kinds) for _ in range(batch.count)]
            ids, is_target = _tensors(documents, batch)
            hidden, looks = (supervised if left > 0 else plain)(ids[:, :-1], tables[batch.length])
            logits, targets = self.model.head(hidden[is_target[:, 1:]]), ids[:, 1:][is_target[:, 1:]]
            loss = answer_loss = F.cross_entropy(logits, targets)
            if left > 0:
                attention = attention_loss(looks, documents)
                loss = loss + attention_weight(self.step / stage.taught) * attention
                self._note("attention_loss", float(attention.detach()))
            for group in self.optimizer.param_groups:
                group["lr"] = stage.learning_rate * schedule(self.step, stage.steps)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self._note("loss", float(answer_loss.detach()))
            self._note("accuracy", float((logits.argmax(-1) == targets).float().mean()))
            self.step += 1
            self.seen += batch.length * batch.count
            self.seconds += time.monotonic() - began
            if self.step % 20 == 0 or self.step == stage.steps:
                self._log(stage)
            if self.step % SAVE_EVERY == 0:
                self._save()
            on_progress(self.seen)

    def _forward(self, traced: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]:
        def forward(ids: Tensor, cos_sin: Tensor) -> tuple[Tensor, list[Tensor]]:
            trace = Trace() if traced else None
            hidden = self.model.model(ids, cos_sin, trace)
            return hidden, trace.attention[:3] if trace else []

        return torch.compile(forward, dynamic=False) if self.compiled else forward

    def _note(self, name: str, value: float) -> None:
        self.curve[name] = value if name not in self.curve else _SMOOTH * self.curve[name] + (1 - _SMOOTH) * value

    def _log(self, stage: Stage) -> None:
        facts = {"stage": stage.name, "step": self.step, "tokens": self.seen, "seconds": round(self.seconds, 1)}
        line = json.dumps({**facts, **{k: round(v, 4) for k, v in self.curve.items()}})
        with (self.directory / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _checkpoint(self, stage: Stage) -> None:
        """Write the stage's checkpoint, and round the weights to bfloat16: training continues from what is stored."""
        target = self.directory / stage.name
        self.model.save(target)
        save_tokenizer(self.tokenizer, target)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.to(torch.bfloat16))


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate at a step: rises over 30 steps, stays at 1, falls to zero over the last 30 %."""
    return min(1.0, (step + 1) / 30) * min(1.0, (steps - step) / (0.3 * steps))


def attention_weight(done: float) -> float:
    """Weight of the attention loss after a share `done` of the supervised steps: 1, then 0.15, then down to zero.

    The weak middle part keeps the heads on their targets while later layers learn to use what these heads copy.
    Without it the heads lose their targets first.
    """
    return 1.0 if done < 0.5 else 0.15 * min(1.0, (1 - done) / 0.2)


def attention_loss(layers: list[Tensor], documents: list[Document]) -> Tensor:
    """Mean over the supervised heads of the mean -log attention weight on the target position.

    `layers`: attention weights (B, H, T, T) of layers 0 to 2. The heads and their targets: `tasks.demo.drafts`.
    """
    length = layers[0].shape[-1]
    parts = [layers[PREVIOUS.layer][:, PREVIOUS.head].diagonal(-1, -2, -1)]
    for head in (KEY_START, KEY_END, LETTER, DIGIT, DIGIT_TOO, OPTION):
        marks = [(i, *pair) for i, d in enumerate(documents) for pair in d.looks.get(head, ()) if pair[0] < length]
        if marks:
            row, query, key = torch.tensor(marks).T
            parts.append(layers[head.layer][row, head.head, query, key])
    return torch.stack([-part.clamp_min(1e-6).log().mean() for part in parts]).mean()


def _tensors(documents: list[Document], batch: Batch) -> tuple[Tensor, Tensor]:
    """Token ids (count, length + 1), padded with the end token, and a mask of the tokens to predict (same shape)."""
    ids = torch.zeros(len(documents), batch.length + 1, dtype=torch.long)
    is_target = torch.zeros_like(ids, dtype=torch.bool)
    for row, document in enumerate(documents):
        ids[row, : len(document.ids)] = torch.tensor(document.ids)
        is_target[row, : len(document.ids)] = torch.tensor(document.answer)
    return ids, is_target
