"""A node on the network: studies in by C-STORE, results out by C-STORE."""
