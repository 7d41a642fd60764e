"""Objects of users: importing, calling and completing them, and the mistakes in what they return."""
