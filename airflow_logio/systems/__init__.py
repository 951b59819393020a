"""External systems of a run: connections by name, reads, write actions by their guarantee, and the payload store."""
