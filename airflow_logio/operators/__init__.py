"""Airflow operators, as in every provider. Elsewhere in this package, "operator" means an operator of the paper."""
