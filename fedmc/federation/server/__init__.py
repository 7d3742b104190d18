"""The server's side: the engine that asks nodes, secure-aggregation sessions, checkpoints and runs."""
