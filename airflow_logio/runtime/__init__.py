"""What runs inside a Spark driver, and what launches and watches one. Needs no Airflow."""
