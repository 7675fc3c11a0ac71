"""Statistics that only the report of a benchmark shows."""
