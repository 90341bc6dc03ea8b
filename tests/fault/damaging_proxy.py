# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy before one worker that damages a single place of its connections."""
import random
import socket
import threading
import time

# A bit is changed; bytes are missing, or come twice; the connection ends after a piece or inside of
# it; a piece comes late, by less or by more than the deadline of the workers; one direction of the
# connection is silent from then on, or one direction of all connections for some seconds.
KINDS = ["flip", "lose", "repeat", "cut", "truncate", "delay", "stall", "block", "wall"]
DIRECTIONS = ["to", "from"]
SHORT_S = 0.5
LONG_S = 6.0


class Fault:
    def __init__(self, kind, direction, skip, seed):
        self.kind, self.direction, self.skip, self.seed = kind, direction, skip, seed
        self.seen = 0
        self.happened_at = None

    def __str__(self):
        return f"{self.kind} {self.direction} the worker after {self.skip} pieces ({self.seed})"


def shut(*ends):
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Proxy:
    """Listens at `address`, and has a port at which the worker shall listen instead."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        # Bound, but not listening: so no other program gets the port.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self.lock = threading.Lock()
        self.fault = None
        self.walls = {}
        self.ends = set()
        self.is_ending = threading.Event()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def arm(self, fault):
        with self.lock:
            self.fault = fault

    def end(self):
        self.is_ending.set()
        shut(self.listener)
        with self.lock:
            shut(*self.ends)
        for thread in list(self.threads):
            thread.join()
        self.listener.close()
        self.reserved.close()

    def accept(self):
        while not self.is_ending.is_set():
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.ends |= {client, server}
            pumps = [threading.Thread(target=self.pump, args=arguments, daemon=True)
                     for arguments in ((client, server, "to"), (server, client, "from"))]
            self.threads += pumps
            for pump in pumps:
                pump.start()

    def take(self, direction):
        """The fault, if it is this piece's."""
        with self.lock:
            fault = self.fault
            if fault is None or fault.direction != direction:
                return None
            fault.seen += 1
            if fault.seen <= fault.skip:
                return None
            self.fault = None
            fault.happened_at = time.monotonic()
            if fault.kind == "wall":
                self.walls[direction] = fault.happened_at + LONG_S
            return fault

    def pump(self, source, target, direction):
        is_blocked = False
        try:
            while piece := source.recv(1 << 16):
                fault = self.take(direction)
                is_blocked |= fault is not None and fault.kind == "block"
                # Bytes that a connection has lost are never sent later.
                is_blocked |= self.walls.get(direction, 0) > time.monotonic()
                if is_blocked:
                    continue
                piece, goes_on = self.damaged(piece, fault) if fault else (piece, True)
                target.sendall(piece)
                if not goes_on:
                    break
        except OSError:
            pass
        shut(source, target)

    def damaged(self, piece, fault):
        choose = random.Random(fault.seed)
        at = choose.randrange(len(piece))
        until = choose.randrange(at, len(piece)) + 1
        if fault.kind == "flip":
            changed = bytearray(piece)
            changed[at] ^= 1 << choose.randrange(8)
            return bytes(changed), True
        if fault.kind == "lose":
            return piece[:at] + piece[until:], True
        if fault.kind == "repeat":
            return piece[:until] + piece[at:], True
        if fault.kind == "truncate":
            return piece[:at], False
        if fault.kind in ("delay", "stall"):
            self.is_ending.wait(SHORT_S if fault.kind == "delay" else LONG_S)
        return piece, fault.kind != "cut"
