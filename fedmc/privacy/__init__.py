"""Privacy that can be tested: what the server sees, how much of it, and what it could make of it (docs/privacy.md).

Secure aggregation
    primitives.py   keys, masks, sealed shares: thin uses of `cryptography`, and Shamir's sharing of a secret
    secagg.py       after Bonawitz et al. (2017): what members and the collector do in a round
    fixed.py        numbers as integers, so that sums are exact and masks can hide them
    words.py        a client's reply as such integers
    cohorts.py      who takes part in a round, so that everybody is hidden
Differential privacy
    dp.py           noise: how much, where it comes from, what releases add up to
    private.py      what a client releases; denoise.py: what the server makes of it
    ledger.py       what an organisation has released, and the bound it set itself
Robustness
    clipping.py     in plain: a change counts up to a multiple of the median
Audit
    watching.py, traces.py, masking.py   what a server sees; attacks.py: what it could make of that
    audit.py, findings.py                a configuration attacked, and the outcome in words
claims.py           what a run may claim, said before it begins
"""
