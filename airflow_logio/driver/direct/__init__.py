"""Bodies that are not in the log go from driver to driver, over Arrow Flight (Section 5, ADR-107)."""
