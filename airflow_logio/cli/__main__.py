"""``python -m airflow_logio.cli`` is `logio`."""

from airflow_logio.cli.app import main

main()
