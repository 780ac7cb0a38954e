"""One model's engines on many devices: a scheduler, engines as Ray actors, and a pool that looks like one engine."""
