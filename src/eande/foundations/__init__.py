"""Checks, seeds and files: what everything uses and nothing of the method."""
