"""The audit: what a server sees, the attacks on it, and their results."""
