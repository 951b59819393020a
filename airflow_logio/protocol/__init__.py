"""The LOG.io algorithms as values in, values out: no clock, no database, no Spark, no Airflow."""
