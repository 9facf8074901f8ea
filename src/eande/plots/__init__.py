"""Results in, matplotlib figures out."""
