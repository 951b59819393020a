"""External systems of a run: connections by name, reads, and write actions by their guarantee."""
