"""The protocol of a real federation, whatever carries it: messages, a node that never loses or doubles a contribution,
and a server that can be killed and gone on with.

    wire.py              what travels: named arrays, and a header of what JSON can hold
    statuses.py          the words with which a node answers a request that it does not fulfil
    secagg_messages.py   the messages of a secure-aggregation session
    node/                one organisation: checks of requests, answers, durable state
    server/              asks nodes, checks what they send, aggregates it, keeps a checkpoint
    setup/               folders, keys, certificates and identities
    flower/              all of it over Flower
"""
