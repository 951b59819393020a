"""Looking after the groups of a run: what is new is launched, what is dead is recovered, what is to stop is ended."""
