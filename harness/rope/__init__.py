"""Context settings (RoPE base, YaRN, interpolation) and their rotary tables: pure maths."""
