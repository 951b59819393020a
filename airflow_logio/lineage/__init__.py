"""Lineage to the record: what it was made from, what became of it, why one is missing (Section 3.1)."""
