"""The protocol of a real federation, independent of the transport. Contributions are counted exactly once, and a run
can be resumed after its server was killed.

    wire.py             requests and replies: named arrays and a JSON header
    secagg_messages.py  the messages of secure aggregation
    node/               an organisation's node: its checks, its answers and its durable store
    server/             the engine that asks nodes and aggregates replies, sessions, checkpoints and runs
    setup/              folders, keys, certificates and identities
    flower/             the transport over Flower
"""
