"""Context settings (RoPE base, YaRN, interpolation) and their rotary tables: pure mathematics.

The way of a setting from the config into the live engine:

1. `harness.config`: a `ContextSetting`, e.g. rope_theta 1e6 with YaRN x 4.
2. `rope.context`: setting and checkpoint config -> complete `rope_parameters`, vLLM's overrides, longest prompt.
3. `rope.tables`: `rope_parameters` -> inverse frequencies and the table of cosines and sines (`Rope`).
4. `harness.models.checkpoint`: `Checkpoint.rope_under(setting)` -> the `Rope` of this checkpoint.
5. `harness.engine.engine`: `Engine.set_context` sends it to every rank.
6. `harness.gated.worker`: writes the table over the live one, reads it back and compares.
"""
