"""Random pipelines in random weather: what a storm is made of, and what must come out of it whatever happens."""
