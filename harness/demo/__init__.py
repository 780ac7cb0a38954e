"""The demo: three small models of the paper's architecture, their texts, their training, their evaluation sets."""
