"""Datasets, as they are published and as Spark sees them."""
