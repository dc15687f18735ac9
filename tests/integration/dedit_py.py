# SPDX-License-Identifier: Apache-2.0
"""A second client of dedit-d, written from docs/protocol.md and proto/dedit.proto alone."""
import array
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile

_generated = tempfile.TemporaryDirectory()


def load_proto(top):
    """Python classes of the messages, made by protoc from the same dedit.proto."""
    subprocess.run(["protoc", "--proto_path=" + os.path.join(top, "proto"),
                    "--python_out=" + _generated.name, "dedit.proto"], check=True)
    sys.path.insert(0, _generated.name)
    import dedit_pb2
    return dedit_pb2


class DaemonError(Exception):
    def __init__(self, error):
        super().__init__("%s: %s" % (error.code, error.message))
        self.code = error.code
        self.message = error.message


class Closed(Exception):
    """The daemon has closed the connection."""


PAD, TOKENS, ROUND, FINISHED, FAILED = range(5)


class Ring:
    """The reader's side of one slot."""

    def __init__(self, fds):
        self.ring_fd, self.cursor_fd, self.event_fd = fds
        size = os.fstat(self.ring_fd).st_size
        self.ring = mmap.mmap(self.ring_fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.cursor = mmap.mmap(self.cursor_fd, 4096, mmap.MAP_SHARED,
                                mmap.PROT_READ | mmap.PROT_WRITE)
        # Words that both sides use are loaded and stored whole: a cast view does that, struct's
        # little-endian formats go byte by byte.
        self.words = memoryview(self.ring)[:4096].cast("Q")
        self.halves = memoryview(self.ring)[:4096].cast("I")
        self.cursor_words = memoryview(self.cursor).cast("Q")
        self.cursor_halves = memoryview(self.cursor).cast("I")
        magic, version, header, self.capacity = struct.unpack_from("<IHHI", self.ring, 0)
        assert magic == 0x474E5244 and version == 1 and header == 4096, "ring header"
        assert self.capacity & (self.capacity - 1) == 0 and size >= 4096 + self.capacity
        self.read_pos = 0
        self.told_stall = 0

    def close(self):
        for view in (self.words, self.halves, self.cursor_words, self.cursor_halves):
            view.release()
        self.ring.close()
        self.cursor.close()
        for fd in (self.ring_fd, self.cursor_fd, self.event_fd):
            os.close(fd)

    def begin(self, start):
        self.read_pos = max(self.read_pos, start)
        self.store()

    def write_pos(self):
        return self.words[8]

    def store(self):
        """Publishes the read position; true when RingMoved is to be sent."""
        self.cursor_words[0] = self.read_pos
        stall = self.halves[20]
        if stall == 0 or stall == self.told_stall:
            return False
        if self.write_pos() - self.read_pos > self.capacity // 2:
            return False
        self.told_stall = stall
        return True

    def next(self):
        """The next record as a dict, or None.  The caller stores the position afterwards."""
        while self.read_pos != self.write_pos():
            at = 4096 + self.read_pos % self.capacity
            size, kind, _ = struct.unpack_from("<IHH", self.ring, at)
            left = min(self.write_pos() - self.read_pos, self.capacity - self.read_pos % self.capacity)
            assert 8 <= size <= left and size % 8 == 0, "record of %d bytes, %d there" % (size, left)
            body = self.ring[at:at + size]
            self.read_pos += size
            if kind == TOKENS:
                return self._tokens(body)
            if kind == ROUND:
                return self._round(body)
            if kind == FINISHED:
                reason, prompt, done, cached = struct.unpack_from("<IIII", body, 8)
                stop = struct.unpack_from("<I", body, 84)[0]
                return {"type": FINISHED, "reason": {1: "stop", 2: "length", 3: "cancelled"}[reason],
                        "prompt_tokens": prompt, "completion_tokens": done, "cached_tokens": cached,
                        "stop": body[96:96 + stop].decode(),
                        "rounds": struct.unpack_from("<QQQ", body, 48),
                        "committed": struct.unpack_from("<Q", body, 88)[0]}
            if kind == FAILED:
                code, done, reason, n = struct.unpack_from("<iIII", body, 8)
                return {"type": FAILED, "code": code, "message": body[24:24 + n].decode(),
                        "reason": {1: "error", 2: "timeout", 3: "shutdown", 4: "stalled"}[reason]}
        return None

    @staticmethod
    def _round(body):
        rnd, window, passes, nodes, committed = struct.unpack_from("<QIIII", body, 8)
        words = struct.unpack_from("<%di" % (passes + window + passes * window + 2 * nodes), body, 32)
        assert len(body) - 32 - 4 * len(words) < 8
        return {"type": ROUND, "round": rnd, "window": window, "passes": passes,
                "committed": committed, "accepted": words[:passes],
                "tokens": words[len(words) - 2 * nodes:len(words) - nodes],
                "parents": words[len(words) - nodes:]}

    @staticmethod
    def _tokens(body):
        rnd, n, m, text_bytes, first = struct.unpack_from("<QIIII", body, 8)
        at, alt, text = 32, 32 + 16 * n, 32 + 16 * n + 8 * m
        tokens = []
        whole = body[text:text + text_bytes]
        for i in range(n):
            ident, flags, k, logprob, length = struct.unpack_from("<IHHfI", body, at + 16 * i)
            alternatives = [struct.unpack_from("<If", body, alt + 8 * j) for j in range(k)]
            alt += 8 * k
            tokens.append({"id": ident, "flags": flags, "logprob": logprob,
                           "alternatives": alternatives,
                           "text": body[text:text + length].decode("utf-8")})
            text += length
        return {"type": TOKENS, "round": rnd, "first": first, "tokens": tokens,
                "text": whole.decode("utf-8")}

    def sleep(self, sock, timeout):
        """Waits for the ring or the socket."""
        self.cursor_halves[16] = 1
        if self.write_pos() == self.read_pos:
            select.select([sock, self.event_fd], [], [], timeout)
        self.cursor_halves[16] = 0
        try:
            os.read(self.event_fd, 8)
        except BlockingIOError:
            pass


class Client:
    def __init__(self, pb, path, hello=True):
        self.pb = pb
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.tag = 0
        self.slots = {}
        self.finished = {}
        self.queued = []
        if hello:
            message = pb.ClientMessage()
            message.hello.min_version = message.hello.max_version = 1
            self.hello = self.call(message).hello

    def close(self):
        for ring in self.slots.values():
            ring.close()
        self.sock.close()

    def send(self, message, fds=()):
        data = message.SerializeToString() if hasattr(message, "SerializeToString") else message
        anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], anc)

    def receive(self):
        """One message and its descriptors; events are remembered and returned too."""
        try:
            data, anc, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(3 * 4))
        except (ConnectionResetError, BrokenPipeError):
            raise Closed()
        if not data:
            raise Closed()
        fds = []
        for level, kind, value in anc:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += list(array.array("i", value))
        message = self.pb.DaemonMessage.FromString(data)
        if message.WhichOneof("body") == "finished":
            self.finished[message.finished.request_id] = message.finished
        if message.WhichOneof("body") == "queued":
            self.queued.append(message.queued.request_id)
        return message, fds

    def call(self, message, fds=()):
        self.tag += 1
        message.tag = self.tag
        try:
            self.send(message, fds)
        except BrokenPipeError:
            pass  # turned away: the reason has been sent
        while True:
            answer, self.fds = self.receive()
            if answer.tag == self.tag or answer.WhichOneof("body") == "error":
                break
        if answer.WhichOneof("body") == "error":
            raise DaemonError(answer.error)
        return answer

    def submit(self, fill, fds=()):
        message = self.pb.ClientMessage()
        fill(message.submit)
        accepted = self.call(message, fds).accepted
        if accepted.has_ring:
            if accepted.new_slot:
                assert len(self.fds) == 3
                self.slots[accepted.slot] = Ring(self.fds)
            self.slots[accepted.slot].begin(accepted.start)
        return accepted

    def moved(self, slot):
        message = self.pb.ClientMessage()
        message.ring_moved.slot = slot
        self.send(message)

    def cancel(self, request_id):
        message = self.pb.ClientMessage()
        message.cancel.request_id = request_id
        self.send(message)

    def pump(self):
        while select.select([self.sock], [], [], 0)[0]:
            self.receive()

    def records(self, accepted, timeout=60):
        """All records of a request to its end."""
        ring = self.slots[accepted.slot]
        while True:
            record = ring.next()
            if record is None:
                if ring.store():
                    self.moved(accepted.slot)
                self.pump()
                if accepted.request_id in self.finished and ring.read_pos == ring.write_pos():
                    return
                ring.sleep(self.sock, timeout)
                continue
            yield record
            if record["type"] in (FINISHED, FAILED):
                ring.store()
                return

    def ids(self, accepted):
        """Token ids, text and the last record."""
        ids, text, last = [], "", None
        for record in self.records(accepted):
            if record["type"] == TOKENS:
                assert record["first"] == len(ids)
                ids += [t["id"] for t in record["tokens"]]
                text += record["text"]
            else:
                last = record
        return ids, text, last

    def wait_finished(self, request_id):
        while request_id not in self.finished:
            self.receive()
        return self.finished[request_id]
