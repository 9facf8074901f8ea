"""Priors: what the parameters may be before any data are seen."""
