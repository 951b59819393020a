"""Spark for a driver: its session or Spark Connect server, and the jobs that write, read, probe and publish datasets.

(ADR-80 to ADR-83, ADR-116.)
"""
