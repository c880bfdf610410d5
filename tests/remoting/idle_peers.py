"""Thousands of peers in a process of their own, so that a server's process spends one descriptor on each, not two.

idle_peers.py PORT COUNT      connects, says "ready"; then, at each line of its input, every hundredth peer sends a
                              frame (the line, as hex) and waits for the first bytes of an answer; says "served"
"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    peers = []
    for number in range(count):
        peer = socket.socket()
        # Several source addresses, so that there are ports enough.
        peer.bind((f"127.0.0.{2 + number % 8}", 0))
        peer.connect(("127.0.0.1", port))
        peers.append(peer)
    print("ready", flush=True)
    for line in sys.stdin:
        frame = bytes.fromhex(line)
        for peer in peers[::100]:
            peer.sendall(frame)
            if not peer.recv(4):
                sys.exit("the server has closed an idle peer")
        print("served", flush=True)


if __name__ == "__main__":
    main()
