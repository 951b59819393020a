"""The figures of the README, measured: `make bench`."""
