"""A benchmark's name -> its samples: one protocol; RULER and lm-eval's tasks behind it."""
