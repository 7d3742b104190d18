"""The gateway, the only port open to other machines: it forwards nodes' calls to the SuperLink on loopback.

server.py     listens, and runs the steps below for each connection
limits.py     every number: deadlines, sizes, counts
admission.py  who may hold a connection: strangers are few and the oldest leaves first, members are counted by key
stream.py     TLS on a non-blocking socket, with buffers of known size
http.py       HTTP/1.1 on one connection
auth.py       whose key signed a call
calls.py      which calls a node may make, and with which content
objects.py    which objects a node may pull, and which it has announced to push
polls.py      which nodes have messages waiting; holds a node's poll until there is one
forward.py    carries a call to the SuperLink and the reply back
doorbell.py   tells the ServerApp what nodes did, and hears from it which nodes have messages
"""
