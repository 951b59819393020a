"""Functions of an author, the operators made of them, and ready-made ones. Open `decorators.py` first."""
