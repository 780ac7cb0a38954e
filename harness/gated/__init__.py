"""The gated-attention implementation for vLLM: layout (pure), attention, model, plugin entry point, worker extension.

Gated Attention for Large Language Models (arXiv 2505.06708), position G1: after scaled dot-product attention and before
the output projection, every query head's output is multiplied by sigmoid(X W_gate), X being the pre-normed hidden
state.
"""
