# SPDX-License-Identifier: Apache-2.0
"""The life of dedit-d: paths, models that come and go, systemd's protocol, clocks, the end.

Speaks TAP.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (BUILD, DAEMON, MODELS, SLOW, SOON, TOP, Daemon, Notify, cases, endless, greedy,  # noqa: E402
                     main, pb, preload, refused, rss, sampled, test)
from dedit_py import Client, Closed, DaemonError, FINISHED  # noqa: E402

CLIENT = os.path.join(BUILD, "client", "dedit-client")


def order(c, kind, **k):
    m = pb.ClientMessage()
    for name, v in k.items():
        setattr(getattr(m, kind), name, v)
    getattr(m, kind).SetInParent()
    return c.call(m)


def states(c):
    return {m.name: m.state for m in order(c, "list_models").models.models}


def wait_log(d, text, seconds=20):
    deadline = time.monotonic() + seconds
    while text not in d.text():
        assert time.monotonic() < deadline, d.text()
        time.sleep(0.02)


def run(args, **k):
    return subprocess.run([DAEMON] + args, capture_output=True, text=True, timeout=60, **k)


# ---- paths ----------------------------------------------------------------------------------------------


@test
def dmn_03_the_length_of_socket_paths():
    """DMN-03: 107 bytes work, 108 and 200 are refused with path, length and limit, for both sides."""
    if os.geteuid() == 0:  # XDG_RUNTIME_DIR is a user's
        def user():
            os.setgid(65534)
            os.setuid(65534)
    else:
        user = None
    for n in (107, 108, 200):
        base = tempfile.mkdtemp(prefix="dt", dir="/tmp")
        fill = n - len(base) - len("/dedit/dedit.sock") - 1
        run_dir = os.path.join(base, "r" * fill)
        os.mkdir(run_dir)
        for p in (base, run_dir):
            os.chmod(p, 0o777)
        path = run_dir + "/dedit/dedit.sock"
        assert len(path) == n
        env = dict(os.environ, XDG_RUNTIME_DIR=run_dir)
        env.pop("DEDIT_SOCKET", None)
        p = subprocess.Popen([DAEMON, "--config", "/dev/null/none"], stderr=subprocess.PIPE, text=True,
                             env=env, preexec_fn=user)
        p.communicate(timeout=30)
        open(base + "/conf", "w").close()
        p = subprocess.Popen([DAEMON, "--config", base + "/conf"], stderr=subprocess.PIPE, text=True,
                             env=env, preexec_fn=user)
        if n == 107:  # the metrics' socket beside it would be longer: it does without
            deadline = time.monotonic() + 30
            while not os.path.exists(path):
                assert time.monotonic() < deadline and p.poll() is None, p.stderr.read()
                time.sleep(0.01)
            time.sleep(0.1)
            ping = subprocess.run([CLIENT, "ping"], env=env, capture_output=True, text=True, timeout=30)
            assert ping.returncode == 0, ping
            p.terminate()
            assert p.wait(30) == 0
            p.stderr.close()
        else:
            err = p.communicate(timeout=30)[1]
            assert p.returncode == 78, err
            assert run_dir[:60] in err and str(n) in err and "107" in err, err
            assert os.listdir(run_dir) == [], "something was made"
            ping = subprocess.run([CLIENT, "ping", "--socket", path], env=env, capture_output=True,
                                  text=True, timeout=30)
            assert ping.returncode != 0 and "107" in ping.stderr and str(n) in ping.stderr, ping
        shutil.rmtree(base)


@test
def socket_paths_that_are_taken():
    """Part E: taken by a file, a folder, a live socket of another type; in an unwritable folder."""
    base = tempfile.mkdtemp(prefix="dedit-test-")
    conf = base + "/conf"
    open(conf, "w").close()
    path = base + "/s"
    with open(path, "w") as f:
        f.write("precious")
    r = run(["--socket", path, "--config", conf])
    assert r.returncode == 78 and "no socket" in r.stderr and path in r.stderr, r
    assert open(path).read() == "precious"
    os.unlink(path)
    os.mkdir(path)
    r = run(["--socket", path, "--config", conf])
    assert r.returncode == 78 and path in r.stderr, r
    os.rmdir(path)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        s = socket.socket(socket.AF_UNIX, kind)
        s.bind(path)
        if kind != socket.SOCK_DGRAM:
            s.listen(1)
        r = run(["--socket", path, "--config", conf])
        assert r.returncode == 78 and "another program listens" in r.stderr, r
        assert os.path.exists(path), "somebody's socket was removed"
        s.close()
        os.unlink(path)
    # A symbolic link is not followed, whatever it points at.
    os.symlink(base + "/target", path)
    r = run(["--socket", path, "--config", conf])
    assert r.returncode == 78 and not os.path.exists(base + "/target"), r
    os.unlink(path)
    if os.geteuid() == 0:
        def user():
            os.setgid(65534)
            os.setuid(65534)
        os.mkdir(base + "/closed", 0o755)
        os.chmod(base, 0o755)
        r = run(["--socket", base + "/closed/s", "--config", conf], preexec_fn=user)
        assert r.returncode == 78, r
        for word in (base + "/closed", "Permission denied", "65534"):
            assert word in r.stderr, r.stderr
    shutil.rmtree(base)


@test
def dmn_04_a_service_user_that_cannot_reach_the_model():
    """DMN-04: the message names the first component that fails, the reason and the user; once, code 78."""
    if os.geteuid() != 0:
        return  # what another user may read cannot be arranged

    def user():
        os.setgid(65534)
        os.setuid(65534)
    base = tempfile.mkdtemp(prefix="dedit-test-")
    os.chmod(base, 0o777)
    open(base + "/conf", "w").close()
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), base + "/closed/m")
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), base + "/shard")
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), base + "/readonly")
    os.mkdir(base + "/empty")
    os.chmod(base + "/closed", 0o700)
    os.chmod(base + "/shard/model.safetensors", 0)
    os.chmod(base + "/readonly", 0o555)

    def start(model, **k):
        return run(["--socket", base + "/s", "--config", base + "/conf", "--threads", "1",
                    "--model", model], preexec_fn=user, **k)
    for model, words in ((base + "/closed/m", [base + "/closed", "ermission", "65534"]),
                         (base + "/shard", ["model.safetensors", "ermission", "65534"]),
                         (base + "/empty", [base + "/empty"]),
                         (base + "/conf", [base + "/conf"]),
                         (base + "/none/m", [base + "/none", "No such file"]),
                         (base + "/conf/m", [base + "/conf", "not a directory"])):
        r = start(model)
        assert r.returncode == 78, (model, r)
        for w in words:
            assert w in r.stderr, (model, r.stderr)
        assert not os.path.exists(base + "/s")
    # A relative path is looked for in model_dir, and said so.
    r = start("m=nowhere/m", cwd="/")
    assert r.returncode == 78 and "nowhere" in r.stderr, r
    before = sorted(os.listdir(base + "/readonly"))
    d = Daemon(models=(), prefix=[], conf="")
    order(d.client(), "load_model", name="r", path=base + "/readonly")
    assert sorted(os.listdir(base + "/readonly")) == before, "something was made in the model's folder"
    d.stop()
    shutil.rmtree(base)


@test
def who_may_give_orders():
    """By user, by the peer's own group, by one of its other groups; everybody else is denied."""
    if os.geteuid() != 0:
        return  # there are no other users to be
    d = Daemon("--socket-mode", "0666", "--privileged-uids", "4001", "--privileged-gids", "4100,4101")
    os.chmod(d.dir, 0o755)
    for uid, gid, groups, may in ((4001, 4000, [], True), (4002, 4100, [], True), (4002, 4000, [7, 4101], True),
                                  (4002, 4000, [7], False), (4002, 4001, [4001], False)):
        child = os.fork()
        if child == 0:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            code = 1
            try:
                c = Client(pb, d.path)
                try:
                    assert c.hello.privileged == may
                    order(c, "reload")
                    code = 0 if may else 2
                except DaemonError as e:
                    code = 0 if not may and e.code == "denied" and str(uid) in e.message else 3
                assert len(c.ids(c.submit(greedy([1, 2], 3)))[0]) == 3
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, (uid, gid, groups)
    d.stop()


# ---- models ------------------------------------------------------------------------------------------------


def several(n, limit, **more):
    """Configuration of n tiny models, none of them loaded."""
    text = "[daemon]\nmax_models = %d\n" % limit
    names = ("a_llama_tied", "c_qwen2", "d_qwen3", "b_llama_rope3")
    for i in range(n):
        text += "[model m%d]\npath = %s\n" % (i, os.path.join(MODELS, names[i]))
        for k, v in more.items():
            text += "%s = %s\n" % (k, v)
    return text


@test
def dmn_06_a_cold_model_serves_all_who_asked():
    """DMN-06: four at once on a cold model; unload while they run; every request has its tokens."""
    d = Daemon(models=(), conf=several(1, 1))
    c, admin = d.client(), d.client()
    want = c.ids(c.submit(greedy([5, 6, 7], 100)))[0]
    order(admin, "unload_model", name="m0")
    assert states(admin) == {"m0": "unloaded"}
    others = [d.client() for _ in range(4)]
    answers = [None] * 4

    def ask(i):
        answers[i] = others[i].ids(others[i].submit(greedy([5, 6, 7], 100)))[0]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == [want] * 4
    running = [o.submit(greedy([5, 6, 7], 400)) for o in others]
    order(admin, "unload_model", name="m0")  # answered when the last one has ended
    assert states(admin) == {"m0": "unloaded"}
    for o, a in zip(others, running):
        assert len(o.ids(a)[0]) == 400
    d.stop()


@test
def dmn_06_two_more_models_than_there_is_room_for():
    """DMN-06: max_models = 1, A busy, B and C asked for together: A ends whole, B and C are served."""
    d = Daemon(models=(), conf=several(3, 1))
    a, b, c = d.client(), d.client(), d.client()
    want = {m: a.ids(a.submit(greedy([5, 6, 7], 12, model=m)))[0] for m in ("m0", "m1", "m2")}
    assert len({tuple(x) for x in want.values()}) == 3
    blocker = d.client()  # with a ring of its own, the smallest there is
    held = blocker.submit(endless([1, 2, 3], model="m0"))
    d.wait_metric("dedit_num_requests_parked", 1)
    refused("busy", ["max_models"], lambda: order(b, "load_model", name="m1"))  # an order is refused, not queued
    answers = {}

    def ask(client, model):
        answers[model] = client.ids(client.submit(greedy([5, 6, 7], 12, model=model)))[0]
    threads = [threading.Thread(target=ask, args=x) for x in ((b, "m1"), (c, "m2"))]
    for t in threads:
        t.start()
    time.sleep(0.3)
    late = d.client()
    again = threading.Thread(target=ask, args=(late, "m0"))  # a later one for the model that goes
    again.start()
    time.sleep(0.2)
    assert answers == {}, "a busy model was evicted"
    d.wait_metric("dedit_num_requests_parked", 1)
    assert len(blocker.ids(held)[0]) == 500
    for t in threads + [again]:
        t.join(60)
    assert answers == want
    d.wait_metric("dedit_num_requests_running", 0)
    # Steady work on one model does not keep another out for ever.
    stop = threading.Event()

    def steady():
        client = d.client()
        while not stop.is_set():
            client.ids(client.submit(greedy([5, 6, 7], 50, model="m0")))
    load = [threading.Thread(target=steady) for _ in range(3)]
    for t in load:
        t.start()
    for _ in range(3):
        assert b.ids(b.submit(greedy([5, 6, 7], 12, model="m1")))[0] == want["m1"]
        assert c.ids(c.submit(greedy([5, 6, 7], 12, model="m2")))[0] == want["m2"]
    stop.set()
    for t in load:
        t.join(60)
    d.stop()


@test
def dmn_06_a_hundred_loads():
    """DMN-06: load and unload a hundred times: memory, descriptors and maps stay what they were."""
    d = Daemon(models=(), conf=several(2, 2))
    c = d.client()

    def measure():
        pid = d.process.pid
        with open("/proc/%d/maps" % pid) as f:
            maps = len(f.readlines())
        return rss(d), len(os.listdir("/proc/%d/fd" % pid)), maps
    first = None
    for i in range(100):
        order(c, "load_model", name="m%d" % (i % 2))
        if i % 10 == 0:
            assert len(c.ids(c.submit(greedy([5, 6, 7], 5, model="m%d" % (i % 2))))[0]) == 5
        order(c, "unload_model", name="m%d" % (i % 2))
        if i == 20:
            first = measure()
    last = measure()
    print("# RSS %.1f -> %.1f MiB, descriptors %d -> %d, maps %d -> %d"
          % (first[0] / 2**20, last[0] / 2**20, first[1], last[1], first[2], last[2]))
    assert last[1] <= first[1] + 1
    if SLOW == 1:  # sanitizers keep what is freed for a while
        assert last[0] < first[0] * 1.1 and last[2] <= first[2] + 4
    d.stop()


@test
def a_reload_drops_models_in_every_state():
    """A model that is loading, served, draining or being freed when the configuration forgets it."""
    d = Daemon(models=(), conf=several(2, 2))
    c, other = d.client(), d.client()
    path = os.path.join(d.dir, "conf")
    with_m0 = several(2, 2)
    without = with_m0.replace("[model m0]", "[model x0]")
    for i in range(60):
        if i % 4 != 3:
            order(c, "load_model", name="m0")
        a = other.submit(greedy([5, 6, 7], 60, model="m0")) if i % 4 == 1 else None
        with open(path, "w") as f:
            f.write(without)
        m = pb.ClientMessage()
        m.tag = 1
        if i % 4 == 3:
            m.load_model.name = "m0"
        else:
            m.unload_model.name = "m0"
        other.send(m)
        if i % 3 == 0:
            time.sleep(0.001 * (i % 7))
        order(c, "reload")
        if a:
            assert len(other.ids(a)[0]) == 60
        while True:
            answer, _ = other.receive()
            if answer.tag == 1:
                break
        with open(path, "w") as f:
            f.write(with_m0)
        deadline = time.monotonic() + 10
        while states(c).get("m0", "unloaded") not in ("unloaded", "ready", "failed"):
            assert time.monotonic() < deadline, states(c)
        order(c, "reload")
    order(c, "load_model", name="m0")
    assert len(c.ids(c.submit(greedy([5, 6, 7], 5, model="m0")))[0]) == 5
    d.stop()


@test
def a_model_that_is_loaded_later_computes_like_the_others():
    """What is configured for all models holds for one that is named at run time: no AMX class with exact = yes, the tier
    of DEDIT_CPU_TIER."""
    path = os.path.join(MODELS, "b_llama_rope3")  # BF16
    for conf, env in (("", {}), ("[daemon]\nexact = yes\n", {}), ("", {"DEDIT_CPU_TIER": "c"})):
        d = Daemon(models=("b_llama_rope3",), conf=conf, env=env)
        order(d.client(), "load_model", name="later", path=path)
        classes = {m.numeric_class for m in order(d.client(), "list_models").models.models}
        assert len(classes) == 1 and (not conf and not env or classes == {"exact, kv f32"}), (conf, env, classes)
        d.stop()


@test
def memory_limit_evicts_what_nobody_uses():
    d = Daemon(models=(), conf=several(3, 3))
    c = d.client()
    need = {}
    for m in ("m0", "m1", "m2"):
        order(c, "load_model", name=m)
        message = pb.ClientMessage()
        message.get_model.name = m
        need[m] = c.call(message).model.memory_bytes
    d.stop()
    limit = need["m0"] + max(need["m1"], need["m2"]) + 1000
    d = Daemon("--memory-limit", str(limit), models=(), conf=several(3, 3))
    c = d.client()
    for m in ("m0", "m1", "m2", "m0", "m1"):
        assert len(c.ids(c.submit(greedy([5, 6, 7], 5, model=m)))[0]) == 5, m
        assert sum(s == "ready" for s in states(c).values()) <= 2
    d.stop()
    d = Daemon("--memory-limit", "100K", models=(), conf=several(3, 3))
    refused("limit-exceeded", ["memory_limit", "MiB"], order, d.client(), "load_model")
    d.stop()


@test
def peers_do_not_fill_the_log():
    """What a peer can cause is logged, for a while; a load that fails is not tried for each request."""
    d = Daemon(models=(), conf="[model broken]\npath = /nonexistent/model\n")
    c = d.client()
    began = time.monotonic()
    for _ in range(200):
        refused("not-found", ["/nonexistent"], c.submit, greedy([1], 1))
    tried = d.text().count("loading broken failed")
    assert 1 <= tried <= 1 + (time.monotonic() - began) // 5, d.text()  # it rests for five seconds
    for _ in range(100):
        bad = d.client()
        bad.send(b"\xff" * 10)
        bad.close()
    d.wait_metric("dedit_connections", 2)
    lines = [line for line in d.text().splitlines() if "<4>peer: " in line]
    assert 1 <= len(lines) <= 20 and "user %d" % os.getuid() in lines[0], lines
    refused("not-found", ["/nonexistent"], order, c, "load_model")  # an order is always carried out
    for _ in range(100):  # the word about it may come after the answer
        if d.text().count("loading broken failed") > tried:
            break
        time.sleep(0.05)
    assert d.text().count("loading broken failed") > tried
    d.stop()


@test
def a_model_file_that_changes_under_the_daemon():
    """Part E: replaced, overwritten or truncated after the load; truncated while it is read."""
    base = tempfile.mkdtemp(prefix="dedit-test-")
    path = base + "/m"
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), path)
    weights = path + "/model.safetensors"
    whole = open(weights, "rb").read()
    d = Daemon("--model", path, models=())
    c = d.client()
    want = c.ids(c.submit(sampled([1, 2, 3], 100, 3)))[:2]

    def same():
        assert c.ids(c.submit(sampled([1, 2, 3], 100, 3)))[:2] == want
        m = pb.ClientMessage()
        m.tokenize.text = "hello there"
        assert c.call(m).tokens.ids
    with open(weights + ".new", "wb") as f:
        f.write(b"garbage")
    os.rename(weights + ".new", weights)
    same()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        os.truncate(os.path.join(path, name), 0)
    same()
    order(c, "unload_model", name="m")
    refused("bad-format", [path], order, c, "load_model")
    d.stop()
    # In place, to nothing, while the daemon has it mapped.
    for keep in (0, 8, 5000, len(whole) - 4096):
        shutil.rmtree(path)
        shutil.copytree(os.path.join(MODELS, "a_llama_tied"), path)
        d = Daemon("--model", path, models=())
        c = d.client()
        os.truncate(weights, keep)
        same()
        d.stop()
    shutil.rmtree(path)
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), path)
    for keep in (0, 5000, len(whole) - 100000):
        with open(weights, "wb") as f:
            f.write(whole)
        d = Daemon(models=("c_qwen2",), env=preload(FAKE_SLOW="1", FAKE_AFTER="1"))
        c, good = d.client(), d.client()
        answer = []

        def load():
            try:
                order(c, "load_model", name="m", path=path)
                answer.append(None)
            except (DaemonError, Closed) as e:
                answer.append(e)
        t = threading.Thread(target=load)
        t.start()
        time.sleep(0.5)
        os.truncate(weights, keep)
        assert len(good.ids(good.submit(greedy([5, 6, 7], 50)))[0]) == 50
        t.join()
        assert d.process.poll() is None, d.text()
        assert isinstance(answer[0], DaemonError), "loaded from half a file: %s" % answer
        assert "shorter" in answer[0].message, answer
        assert len(good.ids(good.submit(greedy([5, 6, 7], 50)))[0]) == 50
        with open(weights, "wb") as f:
            f.write(whole)
        order(c, "load_model", name="m", path=path)
        assert c.ids(c.submit(sampled_for([1, 2, 3], 100, 3, "m")))[:2] == want
        d.stop()
    shutil.rmtree(base)


def sampled_for(ids, n, seed, model):
    def fill(s):
        sampled(ids, n, seed)(s)
        s.model = model
    return fill


@test
def sch_01_admission():
    """SCH-01: a prompt over the pool is refused with both numbers and holds up nobody; a full queue."""
    # 512 bytes a position: the pool has 64 of them.
    d = Daemon(models=(), conf=several(1, 1, kv_bytes="32K", max_context=64))
    c = d.client()
    try:
        a = c.submit(greedy(list(range(1, 66)), 5))
        error = c.wait_finished(a.request_id).error
    except DaemonError as e:
        error = e
    assert error.code == "context-full" and "65" in error.message and "64" in error.message, error
    for k in range(3):
        assert len(c.ids(c.submit(greedy([k + 1, 2, 3, 4, 5], 5)))[0]) == 5
    a = c.submit(greedy(list(range(1, 61)), 100))
    ids, _, last = c.ids(a)
    assert last["type"] == FINISHED and last["reason"] == "length" and 1 <= len(ids) <= 4, (ids, last)
    d.stop()
    d = Daemon("--max-requests", "2", models=(), conf=several(1, 1, max_num_seqs=1))
    c = d.client()
    held = [c.submit(endless([1, 2, 3])), c.submit(greedy([1, 2], 4))]
    d.wait_metric("dedit_num_requests_parked", 1)
    for _ in range(4):
        start = time.monotonic()
        refused("busy", ["max_requests", "2"], c.submit, greedy([1, 2], 4))
        assert time.monotonic() - start < SOON
    assert d.metric("dedit_num_requests_waiting") == 1
    assert len(c.ids(held[0])[0]) == 500
    assert len(c.ids(held[1])[0]) == 4
    d.stop()


# ---- systemd's protocol ---------------------------------------------------------------------------------------


@test
def sys_01_readiness():
    """SYS-01: READY=1 once, from the main process, when connecting works; by path and abstract name."""
    for abstract in (False, True):
        n = Notify(abstract)
        d = Daemon(wait=False, env={"NOTIFY_SOCKET": n.name})
        n.read("READY=1")
        c = d.client()  # at this very moment
        assert states(c) == {"a_llama_tied": "ready"}
        assert n.pid == d.process.pid
        assert any(line.startswith("STATUS=") for line in n.got)
        n.read("STATUS=Serving 1 model")
        d.process.send_signal(signal.SIGHUP)
        n.read("RELOADING=1")
        assert any(line.startswith("MONOTONIC_USEC=") for line in n.got)
        c.close()
        d.process.send_signal(signal.SIGTERM)
        n.read("STOPPING=1")
        d.stop()
        # Once at the start, once after the reload.
        assert n.got.count("READY=1") == 2 and n.got.count("STOPPING=1") == 1, n.got
        n.close()
    for name in ("/nonexistent/notify", "@nobody-listens", "nonsense", ""):
        d = Daemon(env={"NOTIFY_SOCKET": name})
        d.client().close()
        d.stop()


@test
def sys_01_a_long_load_asks_for_time():
    """SYS-01: while a model loads for seconds, EXTEND_TIMEOUT_USEC comes again and again, READY later."""
    n = Notify(False)
    d = Daemon(wait=False, env=preload(NOTIFY_SOCKET=n.name, FAKE_SLOW="3.5"))
    n.read("READY=1")
    extends = [line for line in n.got if line.startswith("EXTEND_TIMEOUT_USEC=")]
    assert len(extends) >= 3 and all(int(e.split("=")[1]) >= 2000000 for e in extends), n.got
    assert any(line.startswith("STATUS=Loading a_llama_tied") for line in n.got), n.got
    c = d.client()
    assert len(c.ids(c.submit(greedy([1, 2], 3)))[0]) == 3
    d.stop()
    n.close()


@test
def sys_01_the_watchdog_is_fed():
    n = Notify(False)
    d = Daemon(wait=False, env={"NOTIFY_SOCKET": n.name, "WATCHDOG_USEC": "400000"})
    n.read("READY=1")
    for _ in range(3):
        n.got.clear()
        n.read("WATCHDOG=1", 2 * SLOW)
    d.stop()
    n.close()


LAUNCH = "export LISTEN_PID=$$%s LISTEN_FDS=%s; exec \"$@\""


def activated(path, fds, count="1", pid=""):
    """A daemon that gets these descriptors from 3 on."""
    def place():
        for i, fd in enumerate(fds):
            os.dup2(fd, 100 + i)
        for i in range(len(fds)):
            os.dup2(100 + i, 3 + i)
            os.set_inheritable(3 + i, True)
    return subprocess.Popen(["/bin/sh", "-c", LAUNCH % (pid, count), "sh", DAEMON, "--config",
                             path + ".conf", "--threads", "1", "--metrics-socket", "none", "--socket",
                             path + ".own", "--model", os.path.join(MODELS, "a_llama_tied")],
                            stderr=subprocess.PIPE, text=True, close_fds=False, preexec_fn=place)


def talk(path):
    c = Client(pb, path)
    ids = c.ids(c.submit(greedy([1, 2, 3], 5)))[0]
    c.close()
    return len(ids)


@test
def sys_02_a_socket_from_systemd():
    """SYS-02: the file stays when the daemon ends, and the next one serves who queued meanwhile."""
    base = tempfile.mkdtemp(prefix="dedit-test-")
    path = base + "/s"
    open(path + ".conf", "w").close()
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.bind(path)
    s.listen(16)
    for _ in range(2):
        p = activated(path, [s.fileno()])
        assert talk(path) == 5
        assert not os.path.exists(path + ".own"), "it made a socket of its own too"
        p.terminate()
        assert p.wait(30) == 0, p.stderr.read()
        p.stderr.close()
        assert os.path.exists(path)
    early = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    early.connect(path)
    m = pb.ClientMessage()
    m.hello.max_version = 1
    early.send(m.SerializeToString())
    p = activated(path, [s.fileno()])
    early.settimeout(30)
    assert pb.DaemonMessage.FromString(early.recv(65536)).WhichOneof("body") == "hello"
    with open("/proc/%d/environ" % p.pid, "rb") as f:
        assert b"LISTEN_FDS" in f.read()
    p.kill()
    p.wait()
    assert os.path.exists(path)
    p = activated(path, [s.fileno()])  # after a SIGKILL, too
    assert talk(path) == 5
    p.terminate()
    assert p.wait(30) == 0
    s.close()
    # Wrong: another process's, two of them, a stream socket, a plain file.
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(base + "/stream")
    stream.listen(1)
    plain = os.open(path + ".conf", os.O_RDONLY)
    for fds, count, words in (([stream.fileno()], "1", "SEQPACKET"), ([plain], "1", "SEQPACKET"),
                              ([plain, plain], "2", "must be 1"), ([plain], "x", "LISTEN_FDS")):
        p = activated(path, fds, count)
        err = p.communicate(timeout=30)[1]
        assert p.returncode == 78 and words in err, (p.returncode, err)
    p = activated(path, [stream.fileno()], "1", "1")  # LISTEN_PID of another process: ignored
    deadline = time.monotonic() + 30
    while not os.path.exists(path + ".own"):
        assert time.monotonic() < deadline and p.poll() is None
        time.sleep(0.02)
    p.terminate()
    assert p.wait(30) == 0
    assert not os.path.exists(path + ".own"), "its own socket is removed"
    shutil.rmtree(base)


@test
def sys_03_devices_of_the_unit():
    """SYS-03: the shipped drop-in for a GPU names its device nodes; the unit hides all others."""
    unit = open(os.path.join(TOP, "systemd", "dedit-d.service.in")).read()
    text = ""
    for name in os.listdir(os.path.join(TOP, "systemd", "examples")):
        with open(os.path.join(TOP, "systemd", "examples", name)) as f:
            text += f.read()
    assert "PrivateDevices=yes" in unit
    for node in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"):
        assert node in text, node
    assert "PrivateDevices=no" in text and "DeviceAllow=" in text


# ---- the end ------------------------------------------------------------------------------------------------


def stop_with(d, sig=signal.SIGTERM):
    start = time.monotonic()
    d.process.send_signal(sig)
    assert d.process.wait(60) == 0, d.text()
    took = time.monotonic() - start
    assert took < SOON, "it took %.1f s" % took
    assert not os.path.exists(d.path)
    return took


@test
def sys_04_stop_in_every_state():
    """SYS-04: idle, loading, in prefill, streaming, with a client that does not read; and start again."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        d = Daemon()
        stop_with(d, sig)  # idle
        d.stop()
    d = Daemon(wait=False, env=preload(FAKE_SLOW="200"))
    deadline = time.monotonic() + 30
    while not os.path.exists(d.path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    stop_with(d)  # a load that nobody needs is not waited for
    d.stop()
    d = Daemon("--drain-timeout", "500ms", models=(),
               conf=several(1, 1, prefill_chunk=16, preload="yes"))
    c, mute, late = d.client(), d.client(), d.client()
    running = [c.submit(greedy([k % 300 for k in range(1, 401)], 100000)) for _ in range(2)]
    held = mute.submit(endless([1, 2, 3]))
    d.wait_metric("dedit_num_requests_parked", 1)
    d.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    try:
        Client(pb, d.path)
        raise AssertionError("a new connection was accepted")
    except (FileNotFoundError, ConnectionRefusedError, Closed, DaemonError):
        pass
    try:
        refused("closed", ["draining"], late.submit, greedy([1], 1))
    except Closed:
        pass
    for a in running:
        _, _, last = c.ids(a)
        assert last and (last["type"] == FINISHED or last["reason"] == "shutdown"), last
    f = mute.wait_finished(held.request_id)
    assert f.finish_reason == "shutdown", f
    assert d.process.wait(10 * SLOW) == 0, d.text()
    start = time.monotonic()
    d.process = subprocess.Popen(d.args, stdin=subprocess.DEVNULL, stdout=d.log, stderr=d.log)
    d.wait_ready()  # the socket is free for the next one
    c, mute = d.client(), d.client()
    mute.submit(endless([1, 2, 3]))
    d.wait_metric("dedit_num_requests_parked", 1)
    d.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    start = time.monotonic()
    d.process.send_signal(signal.SIGTERM)  # a second word ends it at once, in order
    assert d.process.wait(10 * SLOW) == 0 and time.monotonic() - start < SOON
    d.stop()


@test
def clocks_that_jump():
    """Part E: the wall clock goes an hour back and forth: deadlines, order and answers stay right."""
    d = Daemon(env=preload(FAKE_CLOCK="1"))
    c = d.client()
    for ids, want in list(cases("a_llama_tied"))[:4]:
        assert c.ids(c.submit(greedy(ids, len(want))))[0] == want
    start = time.monotonic()
    e = d.client()  # with a ring of its own, which it does not read
    f = e.wait_finished(e.submit(endless([1, 2, 3], timeout_ms=400)).request_id)
    took = time.monotonic() - start
    assert f.finish_reason == "timeout" and 0.3 < took < SOON, (f, took)
    a = c.submit(greedy([1, 2, 3], 10, timeout_ms=60000))
    assert len(c.ids(a)[0]) == 10
    usage = c.wait_finished(a.request_id).usage
    assert 0 < usage.total_ns < 60 * 10**9, usage
    d.stop()


def store_command(*args, **k):
    return subprocess.run([CLIENT] + list(args), capture_output=True, text=True, timeout=120, **k)


def whole_models(store):
    """The store's models; each must have its sums, which agree, and nothing else may be there."""
    there = set(os.listdir(store)) if os.path.exists(store) else set()
    names = {n[:-len(".sha256")] for n in there if n.endswith(".sha256")}
    assert there == names | {n + ".sha256" for n in names}, there
    for n in names:
        sums = subprocess.run(["sha256sum", "-c", "--quiet", n + ".sha256"], cwd=store, capture_output=True, text=True)
        assert sums.returncode == 0, sums
    return names


@test
def a_model_is_in_the_store_with_its_sums_or_not():
    """`add` and `rm` are killed at each of their steps: at no moment is a model there without its sums, or half of one,
    that nobody could tell, and the next command of any name leaves none of it."""
    base = tempfile.mkdtemp(prefix="dedit-life-")
    store, model = base + "/store", os.path.join(MODELS, "a_llama_tied")
    add, rm = ("add", "--store", store, "--name", "m", model), ("rm", "--store", store, "m")
    try:
        for command in (add, rm):
            steps = 0
            for step in range(1, 1000):
                shutil.rmtree(store, ignore_errors=True)
                if command is rm:
                    assert store_command(*add).returncode == 0
                r = store_command(*command, env=preload(FAKE_KILL=str(step)))
                assert r.returncode in (0, -9), (step, r)
                if r.returncode == 0:
                    break
                steps += 1
                there = set(os.listdir(store)) if os.path.exists(store) else set()
                unfinished = ".m.adding" in there
                assert there <= {"m", "m.sha256", ".m.adding"}, (command[0], step, there)
                assert unfinished or len(there) != 1, (command[0], step, there)
                assert "m" not in there or "m.sha256" in there, (command[0], step, there)
                # Another name's command, or the same again.
                if step % 2:
                    assert store_command("rm", "--store", store, "other").returncode == 1
                    assert whole_models(store) <= {"m"}, (command[0], step, os.listdir(store))
                    r = store_command(*command)
                    assert r.returncode == 0 or "exists already" in r.stderr or "No such file" in r.stderr, (step, r)
                else:
                    r = store_command(*command)
                    assert r.returncode == 0 or "exists already" in r.stderr or "No such file" in r.stderr, (step, r)
                assert whole_models(store) == ({"m"} if command is add else set()), (command[0], step)
            assert steps > 8, steps
    finally:
        shutil.rmtree(base)


@test
def a_file_that_is_written_is_there_or_not():
    """Killed at each step: what is written whole has no name before it is; where one is replaced, another name is there
    for the moment before."""
    base = tempfile.mkdtemp(prefix="dedit-life-")
    trace = base + "/trace"
    with open(trace, "w") as f:
        f.write('{"trace": 1, "model": "m", "method": "ar"}\n')
    try:
        fd = os.open(base, os.O_TMPFILE | os.O_WRONLY)
    except OSError:
        fd = -1  # a file system without such files: names are left
    try:
        for before in (None, "old"):
            left = 0
            for step in range(1, 100):
                for n in os.listdir(base):
                    if n != "trace":
                        os.unlink(os.path.join(base, n))
                if before:
                    with open(base + "/page", "w") as f:
                        f.write(before)
                r = store_command("trace-html", "-o", base + "/page", trace, env=preload(FAKE_KILL=str(step)))
                assert r.returncode in (0, -9), r
                there = set(os.listdir(base)) - {"trace", "page"}
                assert os.path.exists(base + "/page") or not before
                if os.path.exists(base + "/page"):
                    with open(base + "/page") as f:
                        text = f.read()
                    assert text == before or text.rstrip().endswith("</html>"), text[-100:]
                left += len(there)
                if r.returncode == 0:
                    assert not there
                    break
            assert step > 2 and (left <= (1 if before else 0) or fd < 0), (before, left)
    finally:
        if fd >= 0:
            os.close(fd)
        shutil.rmtree(base)


def default_signals():
    """A shell's background job ignores SIGINT, and one under nohup SIGHUP; so would what they start."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_DFL)


@test
def batch_ends_at_signals():
    """SIGINT: status 130, SIGTERM: the signal; whole results are kept, and the same command goes on behind them."""
    d = Daemon()
    base = tempfile.mkdtemp(prefix="dedit-life-")
    with open(base + "/in", "w") as f:
        f.write("".join('{"prompt": "%d"}\n' % i for i in range(4000)))
    out = base + "/out"
    batch = ["batch", "--socket", d.path, "--raw", "--quiet", "-p", "1", "-n", "500", "--ignore-eos", "--output", out, base + "/in"]
    try:
        done = 0
        for sig, status in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
            p = subprocess.Popen([CLIENT] + batch, preexec_fn=default_signals)
            deadline = time.monotonic() + 60 * SLOW
            while not os.path.exists(out) or len(open(out).read().splitlines()) < done + 3:
                assert time.monotonic() < deadline and p.poll() is None
                time.sleep(0.01)
            p.send_signal(sig)
            assert p.wait(30 * SLOW) == status, (sig, p.returncode)
            with open(out) as f:
                lines = f.read().split("\n")
            whole = [json.loads(line)["line"] for line in lines[:-1]]
            assert whole == list(range(1, len(whole) + 1)) and len(whole) >= done + 3, whole
            done = len(whole)
    finally:
        shutil.rmtree(base)
    d.stop()


@test
def add_ends_cleanly_at_signals():
    """SIGINT, SIGTERM and SIGHUP: nothing is left, and the status says which; what a live add works on is let be."""
    base = tempfile.mkdtemp(prefix="dedit-life-")
    store, model = base + "/store", base + "/m"
    shutil.copytree(os.path.join(MODELS, "a_llama_tied"), model)
    with open(model + "/padding", "wb") as f:
        f.truncate(8 << 30)  # takes long to hash
    stage = store + "/.m.adding"
    try:
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            p = subprocess.Popen([CLIENT, "add", "--store", store, model], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                 preexec_fn=default_signals)
            deadline = time.monotonic() + 60 * SLOW
            while not (os.path.exists(stage + "/m") and os.listdir(stage + "/m")):
                assert time.monotonic() < deadline and p.poll() is None
                time.sleep(0.01)
            r = store_command("rm", "--store", store, "m")
            assert r.returncode == 1 and "another dedit-client is adding or removing it" in r.stderr, r
            assert os.path.exists(stage + "/m")
            p.send_signal(sig)
            assert p.wait(60 * SLOW) == 128 + sig
            p.stderr.close()
            assert os.listdir(store) == [], os.listdir(store)
    finally:
        shutil.rmtree(base)


sys.exit(main("life"))
