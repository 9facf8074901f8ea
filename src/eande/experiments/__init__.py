"""The paper's tables and figures: settings and a call each."""
