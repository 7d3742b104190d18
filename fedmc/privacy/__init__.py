"""Privacy: what the server sees in each mode, and what a run may claim.

    protocol.py, modes.py   the privacy modes as values: claim, defaults, limits (docs/explanation/privacy.md)
    secagg/                 secure aggregation: the protocol, its cryptography, fixed-point encoding and cohorts
    dp/                     differential privacy: the mechanism with its accounting, and an organisation's ledger
    clipping.py             clipping updates to a multiple of the median norm

The algorithm that runs under differential privacy is `fedmc.algorithms.private`; the attacks are in `fedmc.audit`.
"""
