"""The figures of docs/performance.md, measured: `make bench`."""
