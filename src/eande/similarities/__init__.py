"""Similarities: where embeddings lie and how near they are."""
