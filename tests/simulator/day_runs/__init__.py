"""Runs of days that meet at one place, a table or a folder: backfills at once, days computed again, zombies, take-overs.

The simulator of one run (`tests.simulator.days`) knows all of a driver and its log. Here a driver is only what it does at the
place, by the product's rules, one call after the other; any other driver may do anything between two of them. What must be
seen there is decided by `judges`, from who has claimed and closed a day, and when, and never by these rules.
"""
