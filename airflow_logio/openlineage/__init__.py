"""What OpenLineage is told of a run (ADR-101). Only code that Airflow's OpenLineage provider has called imports this."""
