"""gatedeval: long-context evaluation of language models, baseline against gated attention.

A package imports only from packages below it. The order is in pyproject.toml (`[tool.importlinter]`), and
docs/architecture.md says what each one is for.
"""

__version__ = "0.1.0"
