"""Cluster managers that start drivers on nodes: one port, and what each of them is asked by."""
