"""Training: server rounds, sampling, aggregation, diagnostics, stopping, tuning, and the in-process engine."""
