"""What people and programs are told of a run: snapshots, progress, recoveries, summaries, the records behind lineage."""
