"""Random pipelines of mode ``dataframe`` and ``executors`` with hostile records, zones, names and keys."""
