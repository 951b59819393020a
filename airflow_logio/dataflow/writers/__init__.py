"""Writers: write actions, what they guarantee, and the ready-made ones. Open `action_writers.py` first."""
