"""The model and the posterior it gives: values, samples, summaries, files."""
