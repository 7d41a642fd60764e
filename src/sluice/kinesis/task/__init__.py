"""How tasks read what agents hold, or subscribe themselves."""
