"""Triggers watch from the triggerer. They never start a process: a trigger wakes a task, and the task launches."""
