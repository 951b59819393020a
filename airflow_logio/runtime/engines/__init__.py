"""How a driver gets its Spark: a session of its own JVM, or one of a Spark Connect server (ADR-116)."""
