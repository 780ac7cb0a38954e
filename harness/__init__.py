"""gatedeval: long-context evaluation of language models, baseline against gated attention.

Rooms, from the ground up (a room imports only from rooms below it); see docs/architecture.md:
types < data < config < context < checkpoints < gated < engine < lm < store < benchmarks < plan < runner <
stats < tables < export < cli.
"""

__version__ = "0.1.0"
