"""Benchmarks as lm-eval tasks: RULER is ours; MMLU and GSM8k are lm-eval's own, with local data offline."""
