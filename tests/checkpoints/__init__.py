"""Checkpoints and tokenizers as other people publish them, made small: for `check`, `plan` and `run` alike.

`families` makes tiny random checkpoints with transformers' own classes, one per model family, and computes their
log-probabilities with transformers under a context setting. `odd` makes checkpoints with one fault each.
"""
