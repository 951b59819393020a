"""The demonstration (`make demo`): the sales pipeline on real transactions, in a real Airflow, independently checked."""
