"""Datasets in the simulator: a payload store, the jobs that write into it, folders that datasets are published in."""
