"""The messages between planner, agents and tasks, which do not import one another."""
