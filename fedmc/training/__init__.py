"""Server rounds, sampling, diagnostics, stopping, tuning, and the in-process engine."""
