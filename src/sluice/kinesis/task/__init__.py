"""How tasks read from agents, or subscribe themselves."""
