# SPDX-License-Identifier: Apache-2.0
"""dedit-d as its peers see it: good ones, careless ones, hostile ones.  Speaks TAP."""
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (DAEMON, MODELS, SLOW, SOON, TOP, Daemon, cases, endless, greedy, http, main,  # noqa: E402
                     oracle, pb, refused, sampled, test)
from dedit_py import Closed, DaemonError, FAILED, FINISHED, ROUND, TOKENS  # noqa: E402

# ---- right answers ---------------------------------------------------------------------------------


@test
def greedy_equals_the_reference():
    d = Daemon()
    c = d.client()
    n = 0
    for ids, want in cases("a_llama_tied"):
        if not want:
            continue
        a = c.submit(greedy(ids, len(want)))
        got, _, last = c.ids(a)
        c.wait_finished(a.request_id)  # from here on the slot is free
        assert got == want, "%s, wanted %s" % (got, want)
        assert last["type"] == FINISHED and last["reason"] == "length"
        assert last["completion_tokens"] == len(want) and last["prompt_tokens"] == len(ids)
        n += len(want)
    assert n > 50
    assert len(c.slots) == 1, "one slot serves one request after the other"
    c.close()
    d.stop()


@test
def answers_together_equal_answers_alone():
    d = Daemon()
    c = d.client()
    prompts = [p for p, _ in cases("a_llama_tied")]
    alone = {}
    for i, ids in enumerate(prompts):
        for seed in (1, 2):
            alone[i, seed] = c.ids(c.submit(sampled(ids, 24, seed)))[:2]
    assert alone[0, 1] != alone[0, 2]
    together = {k: c.submit(sampled(prompts[k[0]], 24, k[1])) for k in alone}
    for k, accepted in together.items():
        assert c.ids(accepted)[:2] == alone[k], "request %s" % (k,)
    c.close()
    d.stop()


@test
def answer_without_a_ring():
    d = Daemon()
    c = d.client()
    ids, want = next(x for x in cases("a_llama_tied") if len(x[1]) > 5)

    def fill(s):
        greedy(ids, len(want))(s)
        s.returns.no_ring = True
    a = c.submit(fill)
    assert not a.has_ring
    f = c.wait_finished(a.request_id)
    assert list(f.ids) == want and f.finish_reason == "length" and not f.text_cut
    c.close()
    d.stop()


@test
def long_prompts_in_sealed_memory():
    d = Daemon()
    c = d.client()
    ids = oracle("a_llama_tied")["prompts"][3]["prompt"]
    want = c.ids(c.submit(greedy(ids, 8)))[0]
    data = struct.pack("<%dI" % len(ids), *ids)

    def with_fd(make, size=len(data), kind=1):
        fd = make()
        try:
            def fill(s):
                s.memfd.kind = kind
                s.memfd.size = size
                s.sampling.temperature = 0
                s.sampling.max_tokens = 8
                s.sampling.ignore_eos = True
            return c.ids(c.submit(fill, [fd]))[0]
        finally:
            os.close(fd)

    def memfd(seals):
        fd = os.memfd_create("p", os.MFD_ALLOW_SEALING)
        os.write(fd, data)
        if seals:
            fcntl.fcntl(fd, 1033, seals)
        return fd

    assert with_fd(lambda: memfd(2 | 4 | 8)) == want
    refused("invalid-argument", ["seal"], with_fd, lambda: memfd(0))
    refused("invalid-argument", ["seal"], with_fd, lambda: memfd(4))
    refused("invalid-argument", ["size"], with_fd, lambda: memfd(2 | 4 | 8), len(data) + 4)
    refused("limit-exceeded", ["max_prompt_bytes"], with_fd, lambda: memfd(2 | 4 | 8), 1 << 40)
    refused("invalid-argument", [], with_fd, lambda: os.open(os.path.join(TOP, "README.md"), os.O_RDONLY))
    assert with_fd(lambda: memfd(2 | 4 | 8)) == want
    c.close()
    d.stop()


# ---- refusals ----------------------------------------------------------------------------------------


@test
def bad_values_are_refused_by_name():
    d = Daemon()
    c = d.client()

    def submit(**k):
        def fill(s):
            s.token_ids.ids.extend(k.pop("ids", [1, 2, 3]))
            for name, v in k.items():
                where = s.sampling if hasattr(s.sampling, name) else s
                if isinstance(v, list):
                    getattr(where, name).extend(v)
                else:
                    setattr(where, name, v)
        return c.submit(fill)

    bad = [("temperature", dict(temperature=-1)), ("temperature", dict(temperature=float("nan"))),
           ("top_p", dict(top_p=0)), ("top_p", dict(top_p=1.1)), ("top_k", dict(top_k=-2)),
           ("min_p", dict(min_p=2)), ("repetition_penalty", dict(repetition_penalty=0)),
           ("frequency_penalty", dict(frequency_penalty=9)), ("stop", dict(stop=[""])),
           ("stop_token_ids", dict(stop_token_ids=[1 << 31])), ("token_ids", dict(ids=[600])),
           ("prompt", dict(ids=[]))]
    for field, values in bad:
        refused("invalid-argument", [field], lambda: submit(**values))
    refused("limit-exceeded", ["stop"], lambda: submit(stop=["x"] * 1000))
    refused("context-full", ["512"], lambda: submit(ids=[1] * 512))
    refused("not-found", ["nope"], lambda: submit(model="nope"))
    for field, v in (("n", 2), ("json_schema", "{}"), ("grammar", "x"), ("lora", "x"), ("images", [b"GIF"]),
                     ("parse_tool_calls", True)):
        refused("unsupported", [field, "not supported"], lambda: submit(**{field: v}))
    assert len(c.ids(submit(ids=[1], n=1, parse_tool_calls=False, max_tokens=2, ignore_eos=True))[0]) == 2

    def none(s):
        s.sampling.temperature = 0
    refused("invalid-argument", ["prompt"], lambda: c.submit(none))
    message = pb.ClientMessage()
    message.submit.token_ids.ids.append(1)
    message.submit.drafting.method = "magic"
    refused("unsupported", ["method", "magic"], lambda: c.call(message))
    assert len(c.ids(submit(ids=[1, 2, 3], max_tokens=4, ignore_eos=True))[0]) == 4
    assert c.ids(submit(ids=[1], max_tokens=0))[0] == []
    c.close()
    d.stop()


@test
def the_first_message_is_hello():
    d = Daemon()
    c = d.client(hello=False)
    message = pb.ClientMessage()
    message.health.SetInParent()
    refused("protocol", ["hello"], lambda: c.call(message))
    try:
        c.receive()
        raise AssertionError("still open")
    except Closed:
        pass
    c = d.client(hello=False)
    message = pb.ClientMessage()
    message.hello.min_version = 7
    message.hello.max_version = 9
    refused("unsupported", ["7", "9"], lambda: c.call(message))
    c = d.client()
    c.send(b"\x08\x2a\xfa\x07\x02\x08\x01")  # tag 42, body of a later version
    answer, _ = c.receive()
    assert answer.tag == 42 and answer.error.code == "unsupported"
    c.send(b"\xff" * 100)
    answer, _ = c.receive()
    assert answer.error.code == "protocol"
    d.stop()


@test
def limits_are_named():
    d = Daemon("--max-requests-per-connection", "2", "--max-connections-per-uid", "3")
    c = d.client()
    held = [c.submit(endless([1, 2])) for _ in range(2)]
    refused("limit-exceeded", ["max_requests_per_connection", "2"], lambda: c.submit(greedy([1], 4)))
    others = [d.client() for _ in range(2)]
    try:
        d.client()
        raise AssertionError("a fourth connection was accepted")
    except DaemonError as e:
        assert e.code == "limit-exceeded" and "max_connections_per_uid" in e.message
    except Closed:
        pass
    for o in others:
        o.close()
    for a in held:
        c.cancel(a.request_id)
        assert c.ids(a)[2]["reason"] == "cancelled"
    c.close()
    d.stop()


# ---- the end of requests -------------------------------------------------------------------------------


@test
def cancel_in_every_phase():
    d = Daemon()
    c = d.client()
    a = c.submit(endless([1, 2, 3]))
    c.cancel(a.request_id)  # while it is queued or runs
    assert c.ids(a)[2]["reason"] == "cancelled"
    a = c.submit(endless([1, 2, 3]))
    d.wait_metric("dedit_num_requests_parked", 1)
    c.cancel(a.request_id)  # while its ring is full
    ids, _, last = c.ids(a)
    assert last["type"] == FINISHED and last["reason"] == "cancelled" and 0 < len(ids) < 500
    c.cancel(a.request_id)  # late
    c.cancel(999)  # unknown
    assert len(c.ids(c.submit(greedy([1, 2, 3], 5)))[0]) == 5
    a = c.submit(endless([1, 2, 3], timeout_ms=200))
    c.wait_finished(a.request_id)
    _, _, last = c.ids(a)
    assert last["type"] == FAILED and last["reason"] == "timeout", last
    c.close()
    d.wait_metric("dedit_num_requests_running", 0)
    d.stop()


@test
def a_peer_that_goes_away_frees_everything():
    d = Daemon()
    for _ in range(20):
        c = d.client()
        for _ in range(3):
            c.submit(greedy([1, 2, 3], 500))
        c.close()
    d.wait_metric("dedit_num_requests_running", 0)
    d.wait_metric("dedit_kv_cache_usage_perc", 0)
    before = len(os.listdir("/proc/%d/fd" % d.process.pid))
    for _ in range(30):
        c = d.client()
        c.submit(greedy([1, 2, 3], 500))
        c.close()
    d.wait_metric("dedit_num_requests_running", 0)
    d.wait_metric("dedit_connections", 1)
    assert len(os.listdir("/proc/%d/fd" % d.process.pid)) <= before + 1
    d.stop()


@test
def a_stalled_reader_parks_only_itself():
    d = Daemon()
    slow, quick = d.client(), d.client()

    a = slow.submit(endless([1, 2, 3]))
    d.wait_metric("dedit_num_requests_parked", 1)
    want = quick.ids(quick.submit(greedy([1, 2, 3], 500)))[0]
    assert len(want) == 500
    ids, _, last = slow.ids(a)
    assert ids == want, "parked and resumed, the answer is the same"
    assert last["reason"] == "length"
    assert d.metric("dedit_ring_stalls_total") >= 1
    d.stop()


@test
def a_reader_that_never_moves_loses_its_request():
    d = Daemon("--ring-stall-timeout", "300ms")
    c = d.client()
    a = c.submit(endless([1, 2, 3]))
    f = c.wait_finished(a.request_id)
    assert f.finish_reason == "stalled" and "ring_stall_timeout" in f.error.message
    d.wait_metric("dedit_kv_cache_usage_perc", 0)
    d.stop()


@test
def a_lying_cursor_ends_only_its_request():
    d = Daemon()
    good, bad = d.client(), d.client()
    want = good.ids(good.submit(greedy([1, 2, 3], 200)))[0]
    for value in (1, 1 << 40, (1 << 64) - 8, 12345):
        a = bad.submit(endless([1, 2, 3]))
        b = good.submit(greedy([1, 2, 3], 200))
        d.wait_metric("dedit_num_requests_parked", 1)
        bad.slots[a.slot].cursor_words[0] = value
        bad.moved(a.slot)
        f = bad.wait_finished(a.request_id)
        assert f.error.code == "protocol", f
        assert good.ids(b)[0] == want
    assert bad.ids(bad.submit(greedy([1, 2, 3], 200)))[0] == want, "on a new slot"
    d.stop()


@test
def too_many_descriptors_close_the_connection():
    d = Daemon()
    before = len(os.listdir("/proc/%d/fd" % d.process.pid))
    for n in (4, 100, 250):
        c = d.client()
        message = pb.ClientMessage()
        message.health.SetInParent()
        fds = [os.dup(0) for _ in range(n)]
        c.send(message, fds)
        for fd in fds:
            os.close(fd)
        try:
            while True:
                c.receive()
        except Closed:
            pass
        c.close()
    d.wait_metric("dedit_connections", 1)
    assert len(os.listdir("/proc/%d/fd" % d.process.pid)) <= before + 1
    d.stop()


# ---- the daemon's own life --------------------------------------------------------------------------------


@test
def sigterm_gives_everybody_a_last_word():
    d = Daemon("--drain-timeout", "200ms")
    c = d.client()
    a = c.submit(greedy([1, 2, 3], 500))
    b = c.submit(endless([1, 2, 3]))
    d.wait_metric("dedit_num_requests_parked", 1)
    d.process.send_signal(signal.SIGTERM)
    f = c.wait_finished(b.request_id)
    assert f.finish_reason == "shutdown", f
    ids, _, last = c.ids(a)
    assert last is not None and (last["type"] == FAILED or len(ids) == 500)
    try:
        while True:
            c.receive()
    except Closed:
        pass
    assert d.process.wait(20) == 0
    assert not os.path.exists(d.path)
    d.stop()


@test
def sigkill_is_seen_at_once():
    d = Daemon()
    c = d.client()
    c.submit(greedy([1, 2, 3], 500))
    d.process.kill()
    start = time.monotonic()
    try:
        while True:
            c.receive()
    except Closed:
        pass
    assert time.monotonic() - start < SOON
    d.process.wait()
    # The socket file is stale now; a new daemon replaces it.
    again = subprocess.Popen([DAEMON, "--socket", d.path, "--config", os.path.join(d.dir, "conf"),
                              "--model", os.path.join(MODELS, "a_llama_tied")], stderr=d.log)
    d.process = again
    d.wait_ready()
    d.stop()


@test
def socket_paths():
    d = Daemon()
    two = subprocess.run([DAEMON, "--socket", d.path, "--config", os.path.join(d.dir, "conf")],
                         capture_output=True, text=True, timeout=20)
    assert two.returncode == 78 and d.path in two.stderr, two
    d.client().close()
    long = "/tmp/" + "x" * 103
    for path, words in ((long, ["108", "107"]), ("/tmp/" + "y" * 200, ["205", "107"]),
                        ("/nonexistent/dir/s", ["/nonexistent/dir"])):
        r = subprocess.run([DAEMON, "--socket", path, "--config", os.path.join(d.dir, "conf")],
                           capture_output=True, text=True, timeout=20)
        assert r.returncode == 78, r
        for w in words:
            assert w in r.stderr, r.stderr
    fine = "/tmp/" + "z" * 102
    p = subprocess.Popen([DAEMON, "--socket", fine, "--config", os.path.join(d.dir, "conf")],
                         stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not os.path.exists(fine):
        assert time.monotonic() < deadline and p.poll() is None
        time.sleep(0.01)
    p.terminate()
    assert p.wait(20) == 0
    assert not os.path.exists(fine) and not os.path.exists(fine + ".lock")
    d.stop()


@test
def a_wrong_model_stops_the_start_once():
    for path, words in (("/nonexistent/m.gguf", ["/nonexistent"]), (os.path.join(TOP, "README.md"), ["README.md"])):
        d = Daemon("--model", path, models=(), wait=False)
        assert d.process.wait(20) == 78
        for w in words:
            assert w in d.text(), d.text()
        d.stop(78)


@test
def several_models_come_and_go():
    d = Daemon("--max-models", "2", models=("a_llama_tied", "c_qwen2"))
    c = d.client()

    def order(kind, **k):
        message = pb.ClientMessage()
        for name, v in k.items():
            setattr(getattr(message, kind), name, v)
        getattr(message, kind).SetInParent()
        return c.call(message)

    def states():
        return {m.name: m.state for m in order("list_models").models.models}
    assert states() == {"a_llama_tied": "ready", "c_qwen2": "ready"}
    want = {m: c.ids(c.submit(greedy([5, 6, 7], 12, model=m)))[0] for m in states()}
    assert want["a_llama_tied"] != want["c_qwen2"]
    # A third one takes the place of the least recently used.
    order("load_model", name="third", path=os.path.join(MODELS, "e_odd"))
    assert states() == {"a_llama_tied": "unloaded", "c_qwen2": "ready", "third": "ready"}, states()
    # A request for a model that is not loaded waits for it.
    assert c.ids(c.submit(greedy([5, 6, 7], 12, model="a_llama_tied")))[0] == want["a_llama_tied"]
    assert c.queued, "and is told so"
    order("unload_model", name="third")
    assert states()["third"] == "unloaded"
    refused("bad-format", ["README.md"],
            lambda: order("load_model", name="bad", path=os.path.join(TOP, "README.md")))
    assert c.ids(c.submit(greedy([5, 6, 7], 12, model="c_qwen2")))[0] == want["c_qwen2"]
    refused("not-found", ["nope"], lambda: order("load_model", name="nope"))
    for _ in range(10):
        order("unload_model", name="c_qwen2")
        order("load_model", name="c_qwen2")
    assert c.ids(c.submit(greedy([5, 6, 7], 12, model="c_qwen2")))[0] == want["c_qwen2"]
    d.stop()


@test
def a_reload_keeps_running_requests():
    d = Daemon()
    c = d.client()
    a = c.submit(greedy([1, 2, 3], 500))
    with open(os.path.join(d.dir, "conf"), "w") as f:
        f.write("[limits]\nmax_requests_per_connection = 1\n")
    d.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while "reloaded" not in d.text():
        assert time.monotonic() < deadline, d.text()
        time.sleep(0.02)
    assert len(c.ids(a)[0]) == 500
    with open(os.path.join(d.dir, "conf"), "w") as f:
        f.write("[limits]\nmax_request = 1\n")
    message = pb.ClientMessage()
    message.reload.SetInParent()
    refused("bad-format", ["conf:2", "max_request"], lambda: c.call(message))
    held = c.submit(endless([1, 2, 3]))
    refused("limit-exceeded", ["max_requests_per_connection"], lambda: c.submit(greedy([1], 1)))
    c.cancel(held.request_id)
    d.stop()


@test
def idle_costs_nothing():
    for loop in ("io_uring", "epoll"):
        d = Daemon("--event-loop", loop)
        clients = [d.client() for _ in range(4)]
        clients[0].ids(clients[0].submit(greedy([1, 2, 3], 50)))
        time.sleep(2)  # what calls cost is measured once, half a second after the last order

        def ticks():
            with open("/proc/%d/stat" % d.process.pid) as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        before = ticks()
        time.sleep(3)
        used = (ticks() - before) * 1000 / os.sysconf("SC_CLK_TCK")
        assert used < 20, "%s: %g ms of CPU in 3 s" % (loop, used)
        d.stop()


def check_exposition(text):
    """The rules of the Prometheus text format, strictly."""
    import re
    kinds, seen, values = {}, set(), {}
    current = None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in kinds, "help of %s twice" % name
            current = name
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and kind in ("counter", "gauge", "histogram"), line
            assert kind != "counter" or name.endswith("_total"), line
            kinds[name] = kind
            continue
        m = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(\{([a-z_]+="[^"\\\n]*",?)*\})? (\S+)', line)
        assert m, "no sample: " + line
        name = m.group(1)
        family = re.sub(r"_(bucket|sum|count)$", "", name) if kinds.get(name) is None else name
        assert family == current and family in kinds, line
        assert (name, m.group(2)) not in seen, "twice: " + line
        seen.add((name, m.group(2)))
        v = float(m.group(4))
        assert kinds[family] != "counter" or v >= 0
        values[name + (m.group(2) or "")] = v
    for name, kind in kinds.items():
        if kind == "histogram":
            buckets = [v for k, v in values.items() if k.startswith(name + "_bucket")]
            assert buckets == sorted(buckets) and buckets[-1] == values[name + "_count"], name
    return values


@test
def metrics_over_http():
    d = Daemon()
    c = d.client()
    for _ in range(3):
        c.ids(c.submit(greedy([1, 2, 3], 5)))
    path = os.path.join(d.dir, "s-metrics")
    head, body = http(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK") and b"version=0.0.4" in head
    assert int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) == len(body)
    # A request is counted a little after its reader has seen the end.
    length = 'dedit_request_success_total{finished_reason="length"}'
    for _ in range(100):
        values = check_exposition(body.decode())
        if values[length] == 3:
            break
        time.sleep(0.1)
        body = http(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").split(b"\r\n\r\n", 1)[1]
    model = '{model_name="a_llama_tied"}'
    assert values["dedit_generation_tokens_total" + model] == 15
    assert values[length] == 3
    assert values["dedit_time_to_first_token_seconds_count"] == 3
    for request, status in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"GET /x HTTP/1.1\r\n\r\n", b"404"),
                            (b"nonsense\r\n\r\n", b"400"), (b"G" * 5000, b"431")):
        assert http(path, request).split(b" ")[1] == status, request[:20]
    # Silent and half connections do not keep others out for long.
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(40)]
    for s in silent:
        s.connect(path)
    for s in silent:
        s.close()
    time.sleep(0.2)
    assert http(path, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert c.ids(c.submit(greedy([1, 2, 3], 5)))[0]
    d.stop()
    d = Daemon("--metrics-socket", "none", "--metrics-textfile", "/tmp/dedit-metrics-%d.prom" % os.getpid())
    with open("/tmp/dedit-metrics-%d.prom" % os.getpid()) as f:
        check_exposition(f.read())
    os.unlink("/tmp/dedit-metrics-%d.prom" % os.getpid())
    assert not os.path.exists(os.path.join(d.dir, "s-metrics"))
    d.stop()


@test
def two_daemons_in_one_folder():
    """Each has metrics of its own beside its socket; a socket that is in use is told with the option."""
    folder = tempfile.mkdtemp(prefix="dedit-test-")
    daemons = []
    try:
        for name, metrics in (("a.sock", "a-metrics.sock"), ("b", "b-metrics"), ("b.sock", "b-metrics.sock"), ("dedit.sock", "metrics.sock"),
                              ("dedit", "dedit-metrics")):
            d = Daemon("--socket", os.path.join(folder, name), wait=False)
            d.path = os.path.join(folder, name)
            d.wait_ready()
            daemons.append(d)
            assert http(os.path.join(folder, metrics), b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
        taken = os.path.join(folder, "metrics.sock")
        note = os.path.join(folder, "note")
        with open(note, "w") as f:
            f.write("mine")
        long = os.path.join(folder, "x" * 200)
        for path, rule in ((taken, "another program listens there"), (note, "exists and is no socket"),
                           (long, "%d bytes, the limit is 107" % len(long)), (folder + "/no/m", "No such file or directory")):
            d = Daemon("--metrics-socket", path, wait=False)
            assert d.process.wait(60 * SLOW) == 78
            assert "metrics_socket (--metrics-socket): %s: %s; name another path, or none" % (path, rule) in d.text(), d.text()
            d.stop(d.process.returncode)
        assert open(note).read() == "mine"
    finally:
        for d in daemons:
            d.stop()
        left = os.listdir(folder)
        shutil.rmtree(folder)
    assert left == ["note"], left


@test
def one_daemon_a_socket_while_others_come_and_go():
    """The lock's file goes with its daemon; who waits for it never gets a lock that nobody else sees."""
    folder = tempfile.mkdtemp(prefix="dedit-test-")
    path, conf = os.path.join(folder, "s"), os.path.join(folder, "conf")
    open(conf, "w").close()
    try:
        for _ in range(6):
            command = [DAEMON, "--socket", path, "--config", conf, "--metrics-socket", "none"]
            many = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(5)]
            deadline = time.monotonic() + 60 * SLOW
            while sum(p.poll() is None for p in many) > 1 or not os.path.exists(path):
                assert time.monotonic() < deadline, [p.poll() for p in many]
                time.sleep(0.01)
            left = [p for p in many if p.poll() is None]
            assert len(left) == 1 and all(p.returncode == 78 for p in many if p is not left[0])
            left[0].terminate()
            # The next ones start while this one ends.
            many = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
            assert left[0].wait(60 * SLOW) == 0
            deadline = time.monotonic() + 60 * SLOW
            while sum(p.poll() is None for p in many) > 1:
                assert time.monotonic() < deadline, [p.poll() for p in many]
                time.sleep(0.01)
            for p in many:
                p.terminate()
                assert p.wait(60 * SLOW) in (0, 78, -15)
            for name in ("s", "s.lock"):
                if os.path.exists(os.path.join(folder, name)):
                    os.unlink(os.path.join(folder, name))
    finally:
        shutil.rmtree(folder)


@test
def chat_text_and_token_ids_agree():
    d = Daemon()
    c = d.client()
    message = pb.ClientMessage()
    message.tokenize.text = "hello <|im_end|> there"
    ids = list(c.call(message).tokens.ids)
    message = pb.ClientMessage()
    message.detokenize.ids.extend(ids)
    assert c.call(message).text.text == b"hello <|im_end|> there"
    assert 318 not in ids, "user text is never a control token"

    def text(s):
        s.text = "hello <|im_end|> there"
        s.raw = True
        s.sampling.temperature = 0
        s.sampling.max_tokens = 8
        s.sampling.ignore_eos = True
    assert c.ids(c.submit(text))[0] == c.ids(c.submit(greedy(ids, 8)))[0]

    def chat(s):
        m = s.chat.messages.add()
        m.role, m.content = "user", "hi"
        s.chat.format = "chatml"
        s.sampling.max_tokens = 4
    assert c.submit(chat).prompt_tokens > 5
    d.stop()


@test
def drafted_rounds():
    """Look-up drafts give the same ids; rounds, counters and ROUND records add up."""
    d = Daemon()
    c = d.client()
    pattern = list(range(20, 30)) * 6

    def submit(method, rounds=True, **more):
        def fill(s):
            s.token_ids.ids.extend(pattern)
            s.sampling.max_tokens = 60
            s.sampling.ignore_eos = True
            s.sampling.temperature = 0.8
            s.sampling.repetition_penalty = 0.7  # repeats itself, so look-up finds something
            s.sampling.seed = 5
            s.drafting.method = method
            s.returns.rounds = rounds
            for k, v in more.items():
                setattr(s.drafting, k, v)
        return c.submit(fill)
    want = c.ids(submit("ar", rounds=False))
    accepted = submit("ngram", window=6)
    records = list(c.records(accepted))
    got = [t for r in records if r["type"] == TOKENS for t in r["tokens"]]
    assert [t["id"] for t in got] == want[0]
    rounds = [r for r in records if r["type"] == ROUND]
    drafted = [r for r in rounds if r["tokens"]]
    assert sum(r["committed"] for r in rounds) == 60
    assert drafted and all(len(r["tokens"]) <= 5 for r in drafted)
    assert all(r["parents"] == tuple(range(-1, len(r["parents"]) - 1)) for r in rounds)
    n, nodes, hits = records[-1]["rounds"]
    assert n == len(drafted) and nodes == sum(len(r["tokens"]) for r in drafted)
    assert 0 < hits == sum(t["flags"] & 1 for t in got) < nodes, (hits, nodes)
    assert records[-1]["committed"] == sum(r["committed"] for r in drafted)
    # A ROUND record comes before the tokens of its commit, under one number.
    numbers = [(r["type"], r["round"]) for r in records if r["type"] in (ROUND, TOKENS)]
    assert numbers == [(k, i) for i in range(len(rounds)) for k in (ROUND, TOKENS)]
    usage = c.wait_finished(accepted.request_id).usage
    assert (usage.rounds, usage.drafted_tokens, usage.accepted_tokens) == (n, nodes, hits)
    assert d.metric("dedit_spec_decode_num_drafts_total") == n
    assert d.metric("dedit_spec_decode_num_draft_tokens_total") == nodes
    assert d.metric("dedit_spec_decode_num_accepted_tokens_total") == hits
    assert d.metric("dedit_spec_decode_num_accepted_tokens_per_pos_total") == hits
    assert len(c.ids(submit("ngram", verification="rejection"))[0]) == 60
    for code, words, more in (
            ("unsupported", ["method", "drafter"], dict(method="dedit")),
            ("unsupported", ["method", "scripted"], dict(method="scripted")),
            ("invalid-argument", ["window", "65"], dict(method="ngram", window=65)),
            ("invalid-argument", ["window", "0"], dict(method="ngram", window=0)),
            ("invalid-argument", ["window", "ar"], dict(method="ar", window=4)),
            ("invalid-argument", ["passes"], dict(method="ngram", passes=2)),
            ("invalid-argument", ["tree_budget"], dict(method="ngram", tree_budget=5)),
            ("invalid-argument", ["edit_visibility", "odd"], dict(method="ngram", edit_visibility="odd")),
            ("invalid-argument", ["verification", "chains"], dict(method="auto", verification="rejection"))):
        refused(code, words, lambda: submit(**more))
    c.close()
    d.stop()

@test
def drafter_beside_a_model():
    """A model's drafter from the configuration: every method gives the same ids, also on a prefix that a
    plain request left in the cache; what is drafted is counted, edited and told."""
    drafters = os.path.join(os.path.dirname(MODELS), "drafter")
    conf = "[daemon]\ndefault_model = t\n[model t]\npath = %s\ndrafter = %s\npreload = yes\n" % (
        os.path.join(drafters, "target"), os.path.join(drafters, "fitted"))
    d = Daemon(models=(), conf=conf)
    c = d.client()
    prompt = [(i * 11) % 96 for i in range(40)]

    def submit(method, temperature, **more):
        def fill(s):
            s.token_ids.ids.extend(prompt)
            s.sampling.max_tokens = 60
            s.sampling.ignore_eos = True
            s.sampling.temperature = temperature
            s.sampling.seed = 9
            s.drafting.method = method
            s.returns.rounds = True
            for k, v in more.items():
                setattr(s.drafting, k, v)
        return c.submit(fill)
    for temperature in (0, 0.9):
        want = c.ids(submit("ar", temperature))[0]
        for method, more in (("dflash", {}), ("dedit", dict(passes=3)), ("ddtree", dict(tree_budget=31)),
                             ("dedit", dict(passes=2, edit_visibility="causal", window=12)), ("auto", {})):
            accepted = submit(method, temperature, **more)
            records = list(c.records(accepted))
            got = [t["id"] for r in records if r["type"] == TOKENS for t in r["tokens"]]
            assert got == want, (method, temperature)
            rounds, nodes, hits = records[-1]["rounds"]
            assert method == "auto" or 0 < hits < nodes, (method, temperature, rounds, nodes, hits)
    assert d.metric("dedit_spec_decode_num_accepted_tokens_total") > 0
    refused("invalid-argument", ["passes"], lambda: submit("dflash", 0, passes=2))
    assert len(c.ids(submit("dedit", 0.9, verification="rejection"))[0]) == 60
    c.close()
    d.stop()
    # A model that comes at run time names its drafter.
    d = Daemon()
    c = d.client()
    def load(**values):
        message = pb.ClientMessage()
        for key, value in values.items():
            setattr(message.load_model, key, value)
        return c.call(message)
    path, fitted = os.path.join(drafters, "target"), os.path.join(drafters, "fitted")
    refused("invalid-argument", ["drafter", "path"], lambda: load(name="a_llama_tied", drafter=fitted))
    def edited(model):
        def fill(s):
            greedy([5, 6, 7], 12, model=model)(s)
            s.drafting.method = "dedit"
        return fill
    load(name="late", path=path, drafter=fitted)
    got = c.ids(c.submit(edited("late")))[0]
    assert len(got) > 0
    refused("busy", ["known already", "fitted"], lambda: load(name="late", path=path, drafter="none"))
    load(name="bare", path=path, drafter="none")
    refused("unsupported", ["bare", "drafter"], lambda: c.submit(edited("bare")))
    c.close()
    d.stop()
    # A drafter of another model: the model does not load, and the message says why.
    conf = conf.replace("fitted", "random")
    d = Daemon(models=(), conf=conf, wait=False)
    assert d.process.wait(timeout=30) != 0
    assert "num_target_layers" in d.text() or "vocab_size" in d.text(), d.text()


@test
def drafter_that_lies_beside_its_model():
    """X.drafter is used without a word in the configuration; a broken one costs a warning, not the model;
    `drafter = none` leaves it alone."""
    drafters = os.path.join(os.path.dirname(MODELS), "drafter")
    folder = tempfile.mkdtemp()
    model = os.path.join(folder, "m")
    shutil.copytree(os.path.join(drafters, "target"), model)

    def drafter(conf=""):
        d = Daemon(models=(), conf="[daemon]\ndefault_model = m\n[model m]\npath = %s/\npreload = yes\n%s" % (
            model, conf))
        c = d.client()
        message = pb.ClientMessage()
        message.list_models.SetInParent()
        told = c.call(message).models.models[0].drafter
        log = d.text()
        c.close()
        d.stop()
        return told, log
    assert drafter()[0] == ""
    shutil.copytree(os.path.join(drafters, "fitted"), model + ".drafter")
    assert drafter()[0] != ""
    assert drafter("drafter = none\n")[0] == ""
    shutil.rmtree(model + ".drafter")
    shutil.copytree(os.path.join(drafters, "random"), model + ".drafter")
    told, log = drafter()
    assert told == "" and "m runs without the drafter beside it" in log, log
    shutil.rmtree(folder)


sys.exit(main("daemon"))
