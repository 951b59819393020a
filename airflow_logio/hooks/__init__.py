"""Hooks: how Airflow connections become databases and Spark settings."""
