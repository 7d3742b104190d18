"""50 viewers of a page in one process, for benchmarks/page.py: page_viewers.py PORT, and the token on stdin"""

from __future__ import annotations

import selectors
import socket
import sys

VIEWERS = 50


def follow(port: int, token: str) -> None:
    """Read what the viewers are sent, until killed."""
    waiting, viewers = selectors.DefaultSelector(), []
    request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    for _ in range(VIEWERS):
        viewer = socket.create_connection(("127.0.0.1", port))
        viewer.sendall(request)
        assert b"200" in viewer.recv(2**16)
        waiting.register(viewer, selectors.EVENT_READ, viewer)
        viewers.append(viewer)
    print("following", flush=True)
    while viewers:
        for key, _ in waiting.select():
            if not key.data.recv(2**16):
                waiting.unregister(key.data)
                viewers.remove(key.data)


if __name__ == "__main__":
    follow(int(sys.argv[1]), sys.stdin.readline().strip())
