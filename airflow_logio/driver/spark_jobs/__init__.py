"""The jobs of both modes, what is evaluated side by side, and whose fault an error is."""
