"""What runs inside a driver, the Spark application of one operator group: its loop, its threads, its heartbeat."""
