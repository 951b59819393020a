"""Windows: how events become Input Sets, by number of events, by time, or all in one. Open `window.py` first."""

from airflow_logio.dataflow.windows.counting import AllOfRun, EveryEvents, Synchronized
from airflow_logio.dataflow.windows.tumbling import Tumbling
from airflow_logio.dataflow.windows.window import WINDOW_START, Arrival, Window

__all__ = ["WINDOW_START", "AllOfRun", "Arrival", "EveryEvents", "Synchronized", "Tumbling", "Window"]
