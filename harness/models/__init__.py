"""What is in a checkpoint, its tokenizer, twins and tiny checkpoints, and the model in plain torch."""
