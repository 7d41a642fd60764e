"""Enhanced fan-out: subscriptions that the service pushes to, and the agent that keeps them open.

`driver` runs beside the Spark driver, `agent` in the agent's process, `task` in Spark's tasks;
`subscriptions` reads what the service pushes, in agents and in tasks. The modules of this package are what
the three processes have in common.
"""
