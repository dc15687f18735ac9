# SPDX-License-Identifier: Apache-2.0
"""A private daemon for each test, requests to give it, and TAP; for the test_*.py beside this."""
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dedit_py  # noqa: E402
from dedit_py import Client, Closed, DaemonError  # noqa: E402

TOP = os.environ["top_srcdir"]
BUILD = os.environ["top_builddir"]
DAEMON = os.path.join(BUILD, "daemon", "dedit-d")
MODELS = os.path.join(TOP, "tests", "golden", "models")
with open(os.path.join(BUILD, "config.h")) as _f:
    SLOW = 10 if "#define DEDIT_SANITIZED 1" in _f.read() else 1  # sanitizers are
# Seconds within which something happens "at once". A test tells that it happens from that it waits for a
# timeout of 20 s or more; how fast it is on a loaded machine is for bench/.
SOON = 10 * SLOW
pb = dedit_py.load_proto(TOP)
tests = []
_preload = None


def preload(**k):
    """Environment with preload.c before the C library."""
    global _preload
    if not _preload:
        _preload = tempfile.TemporaryDirectory()
        subprocess.run(os.environ.get("CC", "cc").split()
                       + ["-shared", "-fPIC", "-O1", "-o", _preload.name + "/p.so",
                          os.path.join(TOP, "tests", "integration", "preload.c"), "-ldl"], check=True)
    asan = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return dict({"LD_PRELOAD": _preload.name + "/p.so", "ASAN_OPTIONS": asan}, **k)


def test(f):
    tests.append(f)
    return f


class Daemon:
    """A private daemon on a private socket."""
    alive = []

    def __init__(self, *options, models=("a_llama_tied",), wait=True, env=None, conf="",
                 prefix=(), preexec=None):
        self.dir = tempfile.mkdtemp(prefix="dedit-test-")
        self.path = os.path.join(self.dir, "s")
        args = [DAEMON, "--socket", self.path, "--config", os.path.join(self.dir, "conf"),
                "--threads", "1"]
        for m in models:
            args += ["--model", os.path.join(MODELS, m)]
        with open(os.path.join(self.dir, "conf"), "w") as f:
            f.write(conf)
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.args = list(prefix) + args + list(options)
        self.process = subprocess.Popen(self.args,
                                        stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, preexec_fn=preexec,
                                        env=dict(os.environ, **(env or {})))
        Daemon.alive.append(self)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        deadline = time.monotonic() + 60 * SLOW
        while True:
            try:
                client = Client(pb, self.path)
                message = pb.ClientMessage()
                message.health.SetInParent()
                ready = client.call(message).health.ready
                client.close()
                if ready:
                    return
            except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError, Closed):
                pass  # not yet; or the socket of one that was killed, which the kernel closes a moment later
            assert self.process.poll() is None, "the daemon ended: " + self.text()
            assert time.monotonic() < deadline, "the daemon is not ready: " + self.text()
            time.sleep(0.02)

    def text(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()

    def client(self, **k):
        return Client(pb, self.path, **k)

    def metric(self, name):
        client = self.client()
        message = pb.ClientMessage()
        message.stats.prometheus = True
        text = client.call(message).stats.text
        client.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(name + " ") or line.startswith(name + "{"))

    def wait_metric(self, name, value, seconds=20):
        deadline = time.monotonic() + seconds * SLOW
        while self.metric(name) != value:
            assert time.monotonic() < deadline, "%s is %g, wanted %g" % (name, self.metric(name), value)
            time.sleep(0.02)

    @classmethod
    def kill_all(cls):
        """What a failed test left behind."""
        for d in cls.alive:
            if d.process.poll() is None:
                d.process.kill()
                d.process.wait()
            subprocess.run(["rm", "-rf", d.dir])
        cls.alive.clear()

    def stop(self, code=0):
        Daemon.alive.remove(self)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            got = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the daemon does not stop: " + self.text())
        text = self.text()
        self.log.close()
        subprocess.run(["rm", "-rf", self.dir])
        assert got == code, "exit status %d: %s" % (got, text)
        for word in ("AddressSanitizer", "runtime error", "ThreadSanitizer"):
            assert word not in text, text


class Notify:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, abstract):
        self.dir = tempfile.mkdtemp(prefix="dedit-test-")
        self.name = "@dedit-test-%d" % os.getpid() if abstract else self.dir + "/notify"
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.s.bind("\0" + self.name[1:] if abstract else self.name)
        self.got = []

    def read(self, until, seconds=30):
        """Lines up to the one that begins so."""
        deadline = time.monotonic() + seconds
        while not any(line.startswith(until) for line in self.got):
            self.s.settimeout(max(0.01, deadline - time.monotonic()))
            data, anc, _, _ = self.s.recvmsg(4096, 1000)
            self.pid = [struct.unpack("3i", v)[0] for a, t, v in anc if t == socket.SCM_CREDENTIALS][0]
            self.got += data.decode().split("\n")

    def close(self):
        self.s.close()
        shutil.rmtree(self.dir)


def rss(d):
    with open("/proc/%d/statm" % d.process.pid) as f:
        return int(f.read().split()[1]) * 4096


def oracle(name):
    with open(os.path.join(MODELS, name + ".oracle.json")) as f:
        return json.load(f)


def cases(name):
    """(prompt, greedy continuation where it is safe to compare)"""
    for p in oracle(name)["prompts"]:
        n = 0
        while n < len(p["greedy"]) and p["margin"][n] > 2e-3:
            n += 1
        yield p["prompt"], p["greedy"][:n]


def greedy(ids, n, **more):
    def fill(s):
        s.token_ids.ids.extend(ids)
        s.sampling.temperature = 0
        s.sampling.max_tokens = n
        s.sampling.ignore_eos = True
        for k, v in more.items():
            setattr(s, k, v)
    return fill


def sampled(ids, n, seed):
    def fill(s):
        s.token_ids.ids.extend(ids)
        s.sampling.seed = seed
        s.sampling.max_tokens = n
        s.sampling.ignore_eos = True
    return fill


def endless(ids, **more):
    """A request that cannot end before its reader moves: its records overflow the smallest ring."""
    def fill(s):
        greedy(ids, 500, **more)(s)
        s.sampling.logprobs = 20
        s.returns.ring_bytes = 131072
    return fill


def refused(code, words, f, *args):
    try:
        f(*args)
    except DaemonError as e:
        assert e.code == code, "%s, wanted %s" % (e, code)
        for w in words:
            assert w in e.message, "%s does not name %s" % (e.message, w)
        return
    raise AssertionError("accepted, wanted " + code)


def http(path, request):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(10)
    s.connect(path)
    s.sendall(request)
    data = b""
    while True:
        try:
            more = s.recv(65536)
        except ConnectionResetError:  # it has not read all that was sent
            more = b""
        if not more:
            break
        data += more
    s.close()
    return data


def main(suite):
    wanted = sys.argv[1:]
    failed = 0
    chosen = [t for t in tests if not wanted or t.__name__ in wanted]
    print("1..%d" % len(chosen), flush=True)
    for i, t in enumerate(chosen, 1):
        try:
            t()
            print("ok %d - %s:%s" % (i, suite, t.__name__), flush=True)
        except Exception:
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print("not ok %d - %s:%s" % (i, suite, t.__name__), flush=True)
        Daemon.kill_all()
    return 1 if failed else 0
