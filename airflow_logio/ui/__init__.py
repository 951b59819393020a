"""The page: what a run does, as JSON and as a picture, inside Airflow (a plugin) and without it (`logio ui`)."""
