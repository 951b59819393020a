"""A process that stands by to take a driver's place: a supervisor of one driver, which becomes the next one itself."""
