"""The demo's two evaluation sets as lm-eval tasks: in the formats of MMLU and GSM8k, and neither of them."""
