"""Rounds of simulation: regions, what is used again, how rounds are judged and when they end."""
