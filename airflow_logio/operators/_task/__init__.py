"""What the operators share; none is here. Open `segment.py` (a group's task) and `recovery_round.py` (a recovery) first."""
