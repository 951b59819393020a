"""What a driver answers by its exit code; for people: supervisors believe the log only."""

FINISHED = 0
"""Finished or halted."""
FAILED = 1
"""Failed, and to be recovered."""
REPLACED = 3
"""Another incarnation has taken its place."""
PARKED = 4
"""A person has to mend something first."""
