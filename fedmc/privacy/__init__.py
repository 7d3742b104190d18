"""Privacy that can be tested: sums that show nobody's part of them.

primitives.py   keys, masks, sealed shares: thin uses of the `cryptography` package, and Shamir's sharing of a secret
fixed.py        numbers as integers, so that sums are exact and masks can hide them
secagg.py       secure aggregation after Bonawitz et al. (2017): what members and the collector do in a round
"""
