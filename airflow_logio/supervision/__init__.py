"""Looking after the groups of a run: launch, recover, end, scale (Sections 7.1, 7.2), and stand by to replace a driver."""
