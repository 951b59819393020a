"""Triggers: watching in the triggerer. Nothing is ever spawned there: a trigger wakes a task, and the task launches."""
