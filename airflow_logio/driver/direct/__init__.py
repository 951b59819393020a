"""Bodies that are not in the log go from driver to driver, over Arrow Flight (ADR-107). Open `direct_channel.py` first."""

from airflow_logio.driver.direct.direct_channel import DirectChannel

__all__ = ["DirectChannel"]
