"""Datasets as Spark sees them: jobs that write, read, probe and publish their files. Needs a Spark session, which its caller
brings (ADR-80 to ADR-83)."""
