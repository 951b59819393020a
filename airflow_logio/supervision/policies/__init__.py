"""How many replicas a group is to have: pure policies, from figures to a number and a sentence that explains it.

They need neither Airflow nor the log; `airflow_logio.supervision.controller` reads the figures and makes the request.
"""

from airflow_logio.supervision.policies.ds2 import DS2
from airflow_logio.supervision.policies.policy import Change, Decision, Figures, Policy
from airflow_logio.supervision.policies.schedule import Schedule
from airflow_logio.supervision.policies.threshold import Threshold

__all__ = ["DS2", "Change", "Decision", "Figures", "Policy", "Schedule", "Threshold"]
