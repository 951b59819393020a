"""Bodies that are not in the log go from driver to driver, over Arrow Flight (Section 5, ADR-107). This is its only door."""

from airflow_logio.driver.direct.direct_channel import DirectChannel

__all__ = ["DirectChannel"]
