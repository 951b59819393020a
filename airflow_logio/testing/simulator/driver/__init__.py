"""A simulated driver, one step at a time."""
