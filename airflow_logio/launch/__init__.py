"""Starting a run and launching drivers: checks, configuration, spark-submit, processes by identity."""
