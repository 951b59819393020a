"""The paper's evaluation (Section 9), repeated on this machine: ``make bench ARGS="--only paper"``."""
