"""A node for fault tests: python odd_node.py ODDITY=N node start FOLDER. It does what a node does, but at its N-th
contribution it kills itself (before, committed, sent, replied), or it dawdles N seconds over its first one (slow), or
it polls without being held and writes into the file N how long each poll took (timed)."""

from __future__ import annotations

import os
import signal
import sys
import time

from fedmc.cli import main
from fedmc.federation.flower import node_client
from fedmc.federation.node.node import Node
from fedmc.federation.node.store import Store

oddity, _, number = sys.argv.pop(1).partition("=")
counts = {"before": 0, "committed": 0, "sent": 0, "replied": 0}


def reached(place: str) -> None:
    counts[place] += 1
    if place == oddity and counts[place] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)


hold, answer, push = Store.hold, Node.answer, node_client.push_reply


def dying_hold(self, run, entry):
    hold(self, run, entry)
    reached("committed")


def dying_answer(self, request):
    if request.broadcast.task == "round":
        reached("before")
        if oddity == "slow" and counts["before"] == 1:
            time.sleep(float(number))
    return answer(self, request)


def dying_push(fleet, reply):
    reached("sent")
    push(fleet, reply)
    reached("replied")


def timed_poll(self, hold):
    began = time.monotonic()
    found = poll(self, 0)
    with open(number, "a", encoding="utf-8") as file:
        file.write(f"{time.monotonic() - began}\n")
    return found


if oddity == "timed":
    poll, node_client.Fleet.poll = node_client.Fleet.poll, timed_poll
Store.hold, Node.answer, node_client.push_reply = dying_hold, dying_answer, dying_push
main()
