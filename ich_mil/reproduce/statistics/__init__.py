"""Statistics used only in the report of a benchmark."""
