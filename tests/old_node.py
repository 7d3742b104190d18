"""A node of an earlier version, for test_protocols: it runs in a process of its own on the unpacked tree of a commit.

The first line of its input is JSON: the folder of its state, its number, and everybody's secret keys. Then come
requests, each after its length in 8 bytes; so do the replies.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fedmc
from fedmc.data.partition import make_shards
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store
from fedmc.federation.setup.identities import Identity
from tests.conftest import planted

given = json.loads(sys.stdin.buffer.readline())
assert fedmc.__version__ == given["version"], fedmc.__file__
keys = [Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in given["keys"]]
identity = Identity(given["client"], keys[given["client"]], {k: key.public_key() for k, key in enumerate(keys)}, 3)
shards = make_shards(planted(), np.arange(40) % len(keys), "float64")
node = Node(shards[given["client"]], given["catalogue"], Store(given["folder"]), identity=identity)
while size := sys.stdin.buffer.read(8):
    reply = node.answer_bytes(sys.stdin.buffer.read(int.from_bytes(size)))
    sys.stdout.buffer.write(len(reply).to_bytes(8) + reply)
    sys.stdout.buffer.flush()
