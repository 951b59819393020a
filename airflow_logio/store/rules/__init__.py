"""Rules of the log that every adapter of the store port shares. Pure: no database, no clock."""
