"""On the path of a driver that a test makes slow; Python imports it before anything else."""

from tests.support.slow_driver import install

install()
