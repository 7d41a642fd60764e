"""How the planner reads splits: at a pace for each split, with one time limit for failures."""
