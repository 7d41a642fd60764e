"""What planner, agents and tasks say to one another. None of them imports another one."""
