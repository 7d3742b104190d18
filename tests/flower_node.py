"""A node for tests/test_flower.py: python flower_node.py NUMBER OF ADDRESS STATE"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedmc.engines.flower.fleet import serve
from fedmc.engines.flower.transport import hello
from fedmc.federation.node import Node
from fedmc.federation.store import Store
from fedmc.partition import make_shards

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.conftest import planted

number, of, address, state = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
shard = make_shards(planted(), np.arange(40) % of, "float64")[number]
node = Node(shard, "a-hash", Store(state))


def answer(content: bytes) -> bytes:
    said = hello(content, f"org{number}")
    return said if said is not None else node.answer_bytes(content)


serve(answer, address, None, None)
