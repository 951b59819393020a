"""Data lineage queries (Section 7.3) over any adapter of the store port."""
