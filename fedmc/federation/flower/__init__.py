"""The federation's protocol over Flower (extra `flower`).

versions.py     the versions of Flower that were tried; importing this package with another one is an error
records.py      fedmc's bytes inside Flower's messages
node_client.py  a node on Flower's Fleet API, which never fetches the server's bundle
clientapp.py    the same node as a ClientApp for a stock SuperNode
transport.py    the server's side, inside a Flower ServerApp
app.py          that ServerApp
superexec.py    starts the ServerApp, with its token in a file
superlink.py    starts and queries Flower's SuperLink
gateway.py      the server's only open port, which forwards nodes' calls to the SuperLink
"""

from fedmc.federation.flower import versions

versions.check()
