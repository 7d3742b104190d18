"""The simulation over workers: processes on one machine or many. Only `library` imports Ray."""
