"""The results page of the Lorenz 96 study: one file per section."""
