"""Privacy that can be tested: what the server sees, how much of it, and what may be claimed.

    protocol.py, modes.py   the privacy modes as values: claim, defaults, limits (docs/explanation/privacy.md)
    secagg/                 secure aggregation: the protocol, its cryptography, fixed-point encoding, cohorts
    dp/                     differential privacy: the mechanism with its accounting, and an organisation's ledger
    clipping.py             clipping updates to a multiple of the median norm

The algorithm that runs under differential privacy is `fedmc.algorithms.private`; the attacks are in `fedmc.audit`.
"""
