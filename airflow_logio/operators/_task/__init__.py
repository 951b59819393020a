"""What the Airflow operators of this package share. Nothing here is an operator."""
