"""The protocol of a real federation, independent of the transport. Contributions are counted exactly once, and a run
can be resumed after its server was killed.

    wire.py              what travels: named arrays, and a header of what JSON can hold
    envelope.py          the server's signature on everything that it sends to a node
    protocol.py          the version of the messages, and which versions a server serves
    statuses.py          the words with which a node answers a request that it does not fulfil
    secagg_messages.py   the messages of a secure-aggregation session
    node/                one organisation: checks of requests, answers, durable state
    server/              asks nodes, checks what they send, aggregates it, keeps a checkpoint
    setup/               folders, keys, certificates and identities
    flower/              all of it over Flower
"""
