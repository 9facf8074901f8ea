"""Studies: one file per table or figure."""
