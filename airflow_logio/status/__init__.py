"""What people and programs are told about a run: snapshots, progress, recoveries, summaries, alerts."""
