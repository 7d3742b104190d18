"""The federation's protocol over Flower (extra `flower`).

versions.py     the versions of Flower that were tried; importing this package with another one is an error
records.py      fedmc's bytes inside Flower's messages
node_client.py  a node on Flower's Fleet API, which never fetches the server's bundle
fleet.py        its connection: activation, heartbeats, calls
clientapp.py    the same node as a ClientApp for a stock SuperNode
app.py          the ServerApp
transport.py    how it asks nodes, and asks again
post.py         its messages through the SuperLink, in few calls
superexec.py    starts the ServerApp, with its token in a file
superlink.py    starts and queries Flower's SuperLink
gateway/        the server's only open port, which forwards nodes' calls to the SuperLink
notices.py      what the ServerApp and the gateway tell each other, so that neither polls
"""

from fedmc.federation.flower import versions

versions.check()
