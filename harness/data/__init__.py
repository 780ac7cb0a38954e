"""The files that benchmarks read: their names, where they are, how they are downloaded and read."""
