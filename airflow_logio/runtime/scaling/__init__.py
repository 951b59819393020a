"""More or fewer replicas of a group while its run continues: requests, the Controller, its policies (Section 7.1, 7.2)."""
