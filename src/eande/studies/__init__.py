"""Studies: a folder each, with one file per table or figure (settings and a call)."""
