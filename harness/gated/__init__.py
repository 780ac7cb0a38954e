"""Gated attention in vLLM, as a plugin: attention layers, model class, plugin entry points, worker extension, watchdog.

Gated Attention for Large Language Models (arXiv 2505.06708), position G1. With X the pre-normed hidden states of a
layer, and Q, K, V, G computed from X by one projection:

    O = softmax(Q K^T / sqrt(D)) V        per query head
    Y = concat(O * sigmoid(G)) W_o        G = X W_gate: one value per head (headwise) or D values (elementwise)

From q_proj in the checkpoint to the attention output, in reading order:

1. `harness.models.layout`: which rows of q_proj are queries and which are gates, for every tensor-parallel rank.
2. `gated.attention`: `QKVGParallelLinear` loads these rows; `GatedAttention` computes the equation above.
3. `gated.model`: the decoder layer and the model class around it, and a loader that misses no tensor; `gated.moe`: the
   same around vLLM's mixture of experts.
4. `gated.plugin`: registers the model classes in vLLM and points gated checkpoints at them.

For every model that gatedeval runs, gated or not: `gated.loading` finds parameters that no tensor reached, and
`gated.worker` has what the engine asks of each rank.
"""

LOAD_FORMAT = "gatedeval"
"""vLLM's `load_format` of the loader in `gated.loading`."""
