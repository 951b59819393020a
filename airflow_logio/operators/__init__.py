"""Airflow operators, as in every provider (elsewhere in this package the word means the paper's operators)."""
