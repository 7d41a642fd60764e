"""How the planner reads splits: one pace for each, one patience for all."""
