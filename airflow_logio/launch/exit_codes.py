"""The exit codes of a driver. They are for people: supervisors believe only the log."""

FINISHED = 0
"""Finished or halted."""
FAILED = 1
"""Failed, and will be recovered."""
REPLACED = 3
"""Another incarnation has taken its place."""
PARKED = 4
"""A person has to fix something first."""
