"""What the log says: rows as frozen values, for drivers, supervisors and displays, a module for each topic."""
