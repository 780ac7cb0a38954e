"""What a config file may contain, as pydantic classes, and what their complaints mean in plain words.

Lists are checked entry by entry, so that one bad entry does not hide the mistakes in the others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.config.names import MMLU_SUBJECTS, RULER_TASKS, did_you_mean

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value  # 1e6 is a whole number


def _factor(value: Any) -> Any:
    return value["factor"] if isinstance(value, dict) and list(value) == ["factor"] else value  # {factor: 4} is 4


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_whole)]
Positive = Annotated[int, BeforeValidator(_whole), Field(gt=0)]
Natural = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Factor = Annotated[float, BeforeValidator(_factor), Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelKeys(Keys):
    label: Text
    path: Text
    subfolder: Text | None = None
    revision: Text | None = None
    tokenizer: Text | None = None
    dtype: Dtype | None = None
    contexts: Annotated[list[Text], BeforeValidator(_one_or_more), Field(min_length=1)] | None = None


class YarnKeys(Keys):
    factor: float = Field(ge=1)
    original_max_position_embeddings: Positive
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    attention_factor: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _betas(self) -> YarnKeys:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast:g} must be above beta_slow {self.beta_slow:g} (usually 32, 1)")
        return self


class ContextKeys(Keys):
    label: Text
    max_length: Positive | None = None
    rope_theta: float | None = Field(default=None, gt=1)
    yarn: YarnKeys | None = None
    linear: Factor | None = None
    dynamic: Factor | None = None

    @model_validator(mode="after")
    def _one_kind_that_reaches(self) -> ContextKeys:
        kinds = [k for k in ("yarn", "linear", "dynamic") if getattr(self, k) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} exclude one another; keep one")
        if self.yarn and self.max_length:
            original = self.yarn.original_max_position_embeddings
            reach = int(self.yarn.factor * original)
            if reach < self.max_length:
                raise ValueError(
                    f"yarn reaches factor {self.yarn.factor:g} x original {original} = {reach} tokens, less than "
                    f"max_length {self.max_length}; use a factor of at least {self.max_length / original:g}, "
                    f"or max_length: {reach}"
                )
        return self


def _names(known: tuple[str, ...], what: str) -> Any:
    def check(value: Any) -> Any:
        value = list(known) if value in (None, "all") else _one_or_more(value)
        if not isinstance(value, list) or not value:
            raise ValueError(f"should be all, or a list of {what}s (there are {len(known)})")
        for name in value:
            if name not in known:
                hint = did_you_mean(str(name), known)
                raise ValueError(f"unknown {what} {name!r}{hint}" + ("" if hint else f"; known: {', '.join(known)}"))
        if len(set(value)) < len(value):
            raise ValueError(f"names {next(n for n in value if value.count(n) > 1)!r} twice")
        return value

    return BeforeValidator(check)


class RulerKeys(Keys):
    ruler: Annotated[list[str], _names(RULER_TASKS, "RULER task")]
    lengths: list[Positive] = Field(min_length=1)
    samples: Positive = 500
    profile: Literal["nvidia", "fair"] = "nvidia"
    answer_prefix: Literal["append", "drop"] = "append"
    answer_tokens: Positive | None = None

    @field_validator("lengths")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError(f"has {next(n for n in value if value.count(n) > 1)} twice")
        return sorted(value)


class MmluKeys(Keys):
    shots: Natural = 5
    subjects: Annotated[list[str], _names(MMLU_SUBJECTS, "MMLU subject")] = list(MMLU_SUBJECTS)
    samples: Positive | None = None

    @field_validator("shots")
    @classmethod
    def _dev_has_five(cls, value: int) -> int:
        if value > 5:
            raise ValueError(f"should be 0 to 5, is {value}: MMLU's dev split has five questions a subject")
        return value


class Gsm8kKeys(Keys):
    shots: Natural = 5
    samples: Positive | None = None


class LmEvalKeys(Keys):
    lm_eval: Text
    shots: Natural | None = None
    samples: Positive | None = None


class EngineKeys(Keys):
    tensor_parallel_size: Positive = 1
    enforce_eager: bool = False
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_gib: float | None = Field(default=None, gt=0)
    block_size: Positive | None = None
    prefix_caching: bool = True
    dtype: Dtype = "auto"


class TopKeys(Keys):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # the run's directory below `results`
    models: list[Any] = Field(min_length=1)
    contexts: list[Any] = Field(default=[{"label": "native"}], min_length=1)
    benchmarks: list[Any] = Field(min_length=1)
    seed: Whole = 42
    data: Text | None = None
    results: Text = "results"
    engine: dict[str, Any] | None = None
    chat_template: bool = False
    thinking: bool = False
    caption: Annotated[list[str], BeforeValidator(_one_or_more)] = []


KINDS: dict[str, type[Keys]] = {"ruler": RulerKeys, "mmlu": MmluKeys, "gsm8k": Gsm8kKeys, "lm_eval": LmEvalKeys}
SECTIONS: dict[str, type[Keys]] = {
    "top": TopKeys,
    "model": ModelKeys,
    "context": ContextKeys,
    "yarn": YarnKeys,
    "engine": EngineKeys,
    **KINDS,
}
"""Every class of keys a config can have: what docs/configuration.md must cover."""


def complaints(error: ValidationError, keys: type[Keys]) -> list[tuple[tuple[str | int, ...], str, bool]]:
    """(loc, message, whether it is about the key itself) of everything in a pydantic error, in plain words."""
    found: list[tuple[tuple[str | int, ...], str, bool]] = []
    misspelt: set[tuple[str | int, ...]] = set()  # keys that are there under another name are not missing as well
    for e in sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden"):
        loc, kind, value = e["loc"], e["type"], e["input"]
        known = (YarnKeys if loc[:1] == ("yarn",) else keys).model_fields
        about_key = kind in ("extra_forbidden", "missing")
        if kind == "extra_forbidden":
            hint = did_you_mean(str(loc[-1]), known)
            misspelt.update((*loc[:-1], name) for name in known if f"{name!r}" in hint)
            message = f"unknown key {loc[-1]!r}" + (hint or f"; known keys: {', '.join(known)}")
        elif kind == "missing":
            if loc in misspelt:
                continue
            message = f"missing key {loc[-1]!r}"
        else:
            message = _plain(kind, value, e.get("ctx", {}), e["msg"])
        found.append((loc, message, about_key))
    return found


def _plain(kind: str, value: Any, ctx: dict[str, Any], message: str) -> str:
    shown = f"is {value!r}" if not isinstance(value, dict | list) else f"is a {type(value).__name__}"
    if kind == "value_error":
        return str(ctx["error"])
    if kind.startswith("int_"):
        return f"should be a whole number, {shown}{_thousands(value)}"
    if kind.startswith("float_") or kind == "finite_number":
        return f"should be a number, {shown}{_thousands(value)}"
    if kind.startswith("bool_"):
        return f"should be true or false, {shown}"
    if kind == "string_type":
        quote = f'; write "{value}" in quotes' if isinstance(value, int | float) else ""
        return f"should be text, {shown}{quote}"
    if kind == "literal_error":
        return f"should be {ctx['expected']}, {shown}"
    if kind == "string_pattern_mismatch":
        return f"should have only letters, digits, '.', '_' and '-', {shown}"
    if kind in ("too_short", "string_too_short"):
        return "should not be empty"
    if kind in ("list_type", "dict_type", "model_type"):
        return f"should be a {'list' if kind == 'list_type' else 'mapping'}, {shown}"
    for limit, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most")):
        if limit in ctx:
            return f"should be {word} {ctx[limit]:g}, {shown}"
    return f"{message[0].lower()}{message[1:]}, {shown}"


def _thousands(value: Any) -> str:
    """`; did you mean 32768?` for 32k and 32K, which people write for context lengths."""
    if isinstance(value, str) and value[:-1].isdigit() and value[-1] in "kKmM":
        return f"; did you mean {int(value[:-1]) * (1024 if value[-1] in 'kK' else 1024 * 1024)}?"
    return ""
