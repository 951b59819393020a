-- Airflow's own metadata and the tables that pipelines write, each beside the log's database `logio`, which the server makes.
CREATE DATABASE airflow;
CREATE DATABASE warehouse;
