"""How tasks report their reads to the planner."""
