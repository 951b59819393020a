"""Delta tables as an external system: each commit of the table's own log has data and marker (Algorithm 5).

One committer: delta-rs, in the driver. It reads a version of the table, and commits the next one or nothing. Data files are
written before, under names that are used once; what no commit names, the table's own VACUUM removes. Open first:
`delta_target.py`.
"""
