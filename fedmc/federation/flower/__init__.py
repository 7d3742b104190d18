"""The federation's protocol over Flower (extra `flower`).

records.py    our bytes inside of Flower's messages
fleet.py      a node: one process of ours on Flower's Fleet API, which never asks for the server's bundle
transport.py  the server's side, inside of a Flower ServerApp
app.py        that ServerApp
"""
