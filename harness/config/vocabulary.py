"""What a config consists of. These frozen pydantic models are both the keys of the file and the objects the code uses.

docs/configuration.md describes every key in words. The keys of each benchmark are declared in harness/benchmarks/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from harness.config.cluster import ClusterOptions
from harness.config.fields import (
    AsTuple,
    Dtype,
    Entry,
    Factor,
    FilePath,
    Length,
    Natural,
    OneOrMore,
    PairFactor,
    Positive,
    Text,
    Whole,
)
from harness.config.probing import ProbeOptions
from harness.config.sampling import Decide, Sampling
from harness.config.table import TableOptions
from harness.types import GateLayout


def stretched_length(factor: float, original: float) -> int:
    """The longest prompt plus answer, in tokens, that a scaling factor stretches the original length to."""
    return int(factor * original)


class Model(Entry):
    """A checkpoint with a label: a local directory or a hub id, optionally a subfolder and a revision.

    Checkpoints of one `arm` are of one recipe: other seeds, other data orders, or other training steps (`step`). Arm
    and step decide what tables show and compare; they are in no sample's hash.
    """

    label: Text
    path: Text
    arm: Text | None = None  # None: a row of its own
    step: Natural | None = None  # training step, where checkpoints are points of a curve over training
    subfolder: Text | None = None
    revision: Text | None = None
    tokenizer: Text | None = None  # a directory or hub id; None: beside the weights
    dtype: Dtype = "auto"  # in a file, the default is the engine's
    gate_layout: GateLayout | None = None  # where its gate rows are; None: config.json and the model type say it
    contexts: Annotated[tuple[Text, ...], OneOrMore, Field(min_length=1)] | None = None  # labels; None: all of them

    @model_serializer(mode="wrap")
    def _without_empty_arm(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As it was before there were arms, where the checkpoint is in none: old and new run.json are then equal."""
        return {k: v for k, v in handler(self).items() if v is not None or k not in ("arm", "step")}


class Yarn(Entry):
    """YaRN (Peng et al. 2023, arXiv 2309.00071): NTK-by-parts interpolation and the attention temperature."""

    factor: float = Field(ge=1)
    original_max_position_embeddings: Length  # tokens
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    attention_factor: float | None = Field(default=None, gt=0)  # None: from mscale, else 0.1 ln(factor) + 1
    mscale: float | None = Field(default=None, gt=0)  # DeepSeek's form of the factor on cos and sin, see `_mscales`
    mscale_all_dim: float | None = Field(default=None, gt=0)

    @property
    def reach(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return stretched_length(self.factor, self.original_max_position_embeddings)

    @model_validator(mode="after")
    def _betas(self) -> Yarn:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast:g} must be above beta_slow {self.beta_slow:g} (usually 32, 1)")
        return self

    @model_validator(mode="after")
    def _mscales(self) -> Yarn:
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError(
                "mscale and mscale_all_dim belong together: one without the other has no effect; give both"
            )
        if self.mscale is not None and self.attention_factor is not None:
            raise ValueError("attention_factor and mscale exclude one another: both set the factor on cos and sin")
        return self


class Llama3(Entry):
    """Llama 3.1's scaling: slow dimensions are interpolated by the factor, fast ones kept (transformers `llama3`)."""

    factor: float = Field(ge=1)
    original_max_position_embeddings: Length  # tokens
    low_freq_factor: float = Field(default=1.0, gt=0)
    high_freq_factor: float = Field(default=4.0, gt=0)

    @model_validator(mode="after")
    def _bands(self) -> Llama3:
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ValueError(f"high_freq_factor {high:g} must be above low_freq_factor {low:g} (usually 4, 1)")
        return self


class LongRope(Entry):
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): a factor of its own for every rotated pair of dimensions."""

    short_factor: Annotated[tuple[PairFactor, ...], AsTuple, Field(min_length=1)]  # up to the original length
    long_factor: Annotated[tuple[PairFactor, ...], AsTuple, Field(min_length=1)]  # beyond it
    original_max_position_embeddings: Length  # tokens
    factor: float = Field(ge=1)  # how many times longer the context is
    attention_factor: float | None = Field(default=None, gt=0)  # None: sqrt(1 + ln(factor) / ln(original))

    @property
    def reach(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return stretched_length(self.factor, self.original_max_position_embeddings)

    @model_validator(mode="after")
    def _same_size(self) -> LongRope:
        short, long = len(self.short_factor), len(self.long_factor)
        if short != long:
            raise ValueError(f"short_factor has {short} numbers and long_factor {long}; both have one per rotated pair")
        return self


SCALINGS = ("yarn", "linear", "dynamic", "ntk", "llama3", "longrope")
"""The keys of a context setting that change how positions are encoded. They exclude one another."""


class ContextSetting(Entry):
    """How positions are encoded and how long prompt plus answer may be, in tokens.

    At most one of `SCALINGS` is set; none of them and no `rope_theta` is the checkpoint's own setting ("native").
    `max_length` None means the checkpoint's own limit.
    """

    label: Text
    max_length: Length | None = None
    rope_theta: float | None = Field(default=None, gt=1)
    yarn: Yarn | None = None
    linear: Factor | None = None  # position interpolation factor
    dynamic: Factor | None = None  # dynamic NTK factor
    ntk: Factor | None = None  # NTK-aware factor: another base, the same for all lengths
    llama3: Llama3 | None = None
    longrope: LongRope | None = None

    @property
    def declared_reach(self) -> int | None:
        """The longest length that the setting itself names by factor and original length; None: it names none."""
        own = self.yarn or self.longrope
        return own.reach if own is not None else None

    @model_validator(mode="after")
    def _one_kind_of_scaling(self) -> ContextSetting:
        kinds = [k for k in SCALINGS if getattr(self, k) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} exclude one another; keep one")
        return self


class EngineOptions(Entry):
    """How vLLM is run. None: vLLM's own default.

    In a sample's hash are `dtype`, and where they are not the default `quantization`, `kv_cache_dtype` and float32
    logits. In 16 bits the others can move an answer too.
    """

    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    enforce_eager: bool | Literal["auto"] = "auto"  # auto: eager on a CPU, compiled on a GPU
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_gib: float | None = Field(default=None, gt=0)
    block_size: Positive | None = None
    prefix_caching: bool = True
    dtype: Dtype = "auto"
    float32_logits: bool | Literal["auto"] = "auto"  # of a model in 16 bits; auto: on a GPU
    batch_invariant: bool = False
    quantization: Text | None = None
    kv_cache_dtype: Text | None = None


class BenchmarkEntry(Entry):
    """One entry of `benchmarks`: what the config has to know of a benchmark.

    `harness.benchmarks.protocol.Benchmark` adds what a run has to know. A subclass that sets `KEY` is registered by
    that alone. A subclass with a field called `KEY` is written flat, `{ruler: all, lengths: [4096]}`; any other nested,
    `{mmlu: {shots: 5}}`.
    """

    KEY: ClassVar[str] = ""
    """The key that names the benchmark in a config."""
    LIST_MEANS: ClassVar[str] = ""
    """The field that is meant where a name or a list stands in place of the nested mapping: `{mmlu: [anatomy]}`."""

    FILES: ClassVar[tuple[str, ...]] = ()
    """Fields that may name a file: from the current directory, else from the config's."""

    contexts: Annotated[tuple[Text, ...], OneOrMore, Field(min_length=1)] | None = None  # labels; None: all of them
    dtype: Dtype | None = None  # in which every model answers this entry; None: the model's own

    registered: ClassVar[dict[str, type[BenchmarkEntry]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "KEY" in cls.__dict__:
            BenchmarkEntry.registered[cls.KEY] = cls

    @classmethod
    def flat(cls) -> bool:
        """Whether all keys stand beside `KEY` in one mapping."""
        return cls.KEY in cls.model_fields

    @classmethod
    def entry_name(cls, entry: Mapping[str, Any]) -> str:
        """What an entry of the file is called in messages and on the command line."""
        return cls.KEY

    @property
    def name(self) -> str:
        """The benchmark's name in cells and tables."""
        return self.KEY

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the entry names, without loading anything; more than one is averaged in tables."""
        return (self.name,)

    def task_lengths(self) -> Iterator[tuple[str, int]]:
        """(task, length in tokens) of all that is asked under one context setting; length 0: it has no lengths."""
        for task in self.tasks:
            yield task, 0

    @property
    def sampling(self) -> Sampling | None:
        """The rule by which samples are drawn in rounds; None where the entry asks for a count, or has no samples."""
        samples = getattr(self, "samples", None)
        return samples if isinstance(samples, Sampling) else None

    def conflict(self, other: BenchmarkEntry) -> str | None:
        """Why this entry cannot be in one config with `other`, which stands before it; None where it can."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON-able data in the file's own form; `contexts` and `dtype` only where they are set."""
        keys = self.model_dump(mode="json", exclude={k for k in ("contexts", "dtype") if getattr(self, k) is None})
        return keys if self.flat() else {self.KEY: keys}


class Config(Entry):
    """One evaluation: every model under every context setting on every benchmark. Models carry their resolved dtype."""

    ALTERNATIVES: ClassVar[Mapping[str, str]] = {"benchmarks": ", or 'probe' (a config of probes alone)"}
    """Key -> what may stand in its place, for the message that it is missing."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # the run's directory below `results`
    models: Annotated[tuple[Model, ...], AsTuple, Field(min_length=1)]
    contexts: Annotated[tuple[ContextSetting, ...], AsTuple, Field(min_length=1)] = (ContextSetting(label="native"),)
    benchmarks: Annotated[tuple[BenchmarkEntry, ...], AsTuple, Field(min_length=1)]
    seed: Whole = 42
    data: FilePath | None = None
    results: FilePath = Path("results")
    engine: EngineOptions = EngineOptions()
    chat_template: bool = False
    thinking: bool = False
    thinking_tokens: Positive | None = None  # of a thought, beside the answer's own; needed with `thinking`
    thinking_tags: Annotated[tuple[Text, ...], AsTuple, Field(min_length=2, max_length=2)] = ("<think>", "</think>")
    caption: Annotated[tuple[str, ...], OneOrMore] = ()
    decide: Decide | None = None
    probe: ProbeOptions | None = None
    cluster: ClusterOptions | None = None  # None: one engine, in this process
    table: TableOptions = TableOptions()

    def contexts_of(self, model: Model) -> tuple[ContextSetting, ...]:
        """The context settings that a model is run under: its own list, or all of them."""
        return tuple(c for c in self.contexts if model.contexts is None or c.label in model.contexts)
