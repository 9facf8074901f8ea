"""How far a model is from the truth, where the truth is known: numbers, no pictures."""
