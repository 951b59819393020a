"""Windows: how events become Input Sets, by number of events or by time. Open `window.py` first."""

from airflow_logio.dataflow.windows.counting import EveryEvents, Synchronized
from airflow_logio.dataflow.windows.tumbling import Tumbling
from airflow_logio.dataflow.windows.window import WINDOW_START, Arrival, Window

__all__ = ["WINDOW_START", "Arrival", "EveryEvents", "Synchronized", "Tumbling", "Window"]
