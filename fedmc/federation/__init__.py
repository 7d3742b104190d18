"""The protocol of a real federation, whatever carries it: messages, a node that never loses or doubles a contribution,
and a server that can be killed and gone on with.

    wire.py        what travels, as named arrays and plain words
    store.py       a node's state on disk: committed, pending, and the reply that goes with it
    node.py        one organisation: its shard, its store, and how it answers
    engine.py      the server's side: asks nodes, checks what they send, adds it up
    checkpoint.py  the server's state on disk
"""
