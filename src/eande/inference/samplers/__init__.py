"""Samplers of a posterior, one file each."""
