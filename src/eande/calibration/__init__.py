"""Calibration: posteriors that cover as often as they say."""
