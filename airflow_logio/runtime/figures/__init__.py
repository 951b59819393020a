"""What people and programs are told about a run: snapshots, progress, recoveries, summaries, the records behind lineage."""
