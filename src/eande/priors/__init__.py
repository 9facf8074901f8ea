"""Priors: the distribution of the parameters before any data are seen."""
