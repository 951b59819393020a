"""Tables of SQL databases as Arrow records: names, types, reads and inserts, with what is special in each database."""
