"""From simulations to a model: the training loop and what it needs."""
