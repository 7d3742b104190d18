"""Differential privacy: the mechanism, its accounting, and the ledger."""
