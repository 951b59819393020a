"""LOG.io beside Structured Streaming and Flink: one aggregation into PostgreSQL, exactly once on all sides."""
