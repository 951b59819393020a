"""A driver that a cluster manager has started on a node. Open `node_driver.py` first."""
