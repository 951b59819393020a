"""LOG.io for Apache Airflow and Spark: exactly-once recovery, event lineage, scaling replicas.

The package root imports nothing: a Spark node needs no Airflow, and provider discovery must stay cheap.
"""

__version__ = "0.1.0"
