"""Log-probabilities of a text's tokens in a live vLLM model, in blocks of positions: perplexity without its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_LOGITS = 1 << 24
"""Logits in memory at once, in numbers."""


def token_losses(model: Any, hidden: Tensor, following: Sequence[int]) -> Iterator[Tensor]:
    """Negative log-likelihoods (nats) of the tokens that follow, block by block.

    `hidden`: (n, E) final hidden states. `following`: up to n token ids, each predicted from the state at its place.
    Yields nothing on ranks that vLLM gives no logits.
    """
    targets = torch.tensor(following, device=hidden.device)
    rows = max(1, _LOGITS // max(1, model.config.vocab_size))
    for begin in range(0, len(targets), rows):
        block = targets[begin : begin + rows]
        logits = model.compute_logits(hidden[begin : begin + len(block)])
        if logits is not None:  # ranks other than the first get none on some platforms
            wide = logits.float()
            yield wide.logsumexp(-1) - wide.gather(1, block[:, None])[:, 0]


class TextLosses:
    """Computes the loss of every token of one text while it passes through the model: `attach`, run it, `finish`.

    `model`: vLLM's model in this rank. `ids`: (n,) the text. The engine is sent all but the last of them. Needs eager
    mode, as every hook does.
    """

    def __init__(self, model: nn.Module, ids: Sequence[int]) -> None:
        self.model, self.ids = model, list(ids)
        self.seen = 0
        self.losses: list[Tensor] = []
        self.error: str | None = None
        self._undo: Any = None

    def attach(self) -> None:
        """Put the hook in place."""
        self._undo = self.model.register_forward_hook(self._on_model)

    def detach(self) -> None:
        """Remove the hook. Idempotent."""
        if self._undo is not None:
            self._undo.remove()
            self._undo = None

    def finish(self) -> bytes:
        """Remove the hook; (n - 1) float32 losses of ids[1:], nothing where this rank has no logits.

        Raises:
            ValueError: the hook failed, or the model did not see the text exactly once.
        """
        self.detach()
        if self.error:
            raise ValueError(self.error)
        if self.seen != len(self.ids) - 1:
            raise ValueError(
                f"the model saw {self.seen} of {len(self.ids) - 1} tokens: is it compiled, or was the prefix cached?"
            )
        return torch.cat(self.losses).cpu().numpy().tobytes() if self.losses else b""

    def _on_model(self, module: Any, args: Any, output: Any) -> None:
        if self.error is not None or not isinstance(output, Tensor):
            return  # a pipeline stage that is not the last gives no tensor
        try:
            if self.seen + len(output) >= len(self.ids):
                raise ValueError(f"the model got more than {len(self.ids) - 1} tokens: another request was running")
            following = self.ids[self.seen + 1 : self.seen + len(output) + 1]
            self.losses += token_losses(self.model, output, following)
            self.seen += len(output)
        except Exception as error:  # an exception inside the model would end the engine
            self.error = f"{type(error).__name__}: {error}"
