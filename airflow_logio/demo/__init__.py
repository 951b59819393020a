"""The demonstration: the sales pipeline on real transactions, in a real Airflow, checked by other means. `make demo`."""
