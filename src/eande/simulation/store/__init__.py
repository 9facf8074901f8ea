"""Keeping simulations: files that survive crashes."""
