"""What a driver finds that a cluster manager has started: the connections of its node, and its launch in the log."""
