"""The files that benchmarks read: what they are called, where they are found, how they are read."""
