"""vLLM behind three verbs (generate, choose, score) and set_context; what is sent and what comes back."""
