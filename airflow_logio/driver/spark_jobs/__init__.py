"""The jobs of modes ``executors`` and ``dataframe``. Open `generation.py` (windows) and `evaluation.py` (events) first."""
