"""What attention, gates and activations do inside a model, measured on one text at a time.

`rows` chooses the query positions, `attention` measures their attention weights, `recorder` collects all measurements
in a live vLLM model, `reference` computes the same from whole matrices in plain torch, `results` puts ranks together.
"""
