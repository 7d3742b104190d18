"""Secure aggregation: the protocol, its cryptography, fixed-point encoding and cohorts."""
