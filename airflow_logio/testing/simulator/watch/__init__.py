"""The invariants of the log, checked after every transaction of a schedule."""
