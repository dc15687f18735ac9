# SPDX-License-Identifier: Apache-2.0
"""What the system refuses, one call at a time: each is told in a line, and nothing is lost or taken that is another's.

Calls fail where preload.c says so.  Speaks TAP.
"""
import errno
import os
import resource
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, DAEMON, MODELS, SLOW, Daemon, main, preload, test  # noqa: E402

CLIENT = os.path.join(BUILD, "client", "dedit-client")
MODEL = os.path.join(MODELS, "a_llama_tied")


class Folder(tempfile.TemporaryDirectory):
    """A private folder with an empty configuration."""

    def __enter__(self):
        super().__enter__()
        self.write("conf", "")
        return self

    def path(self, name):
        return os.path.join(self.name, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def start(self, *options, env=None, **k):
        """A daemon that is to end by itself."""
        return run(DAEMON, "--config", self.path("conf"), "--socket", self.path("s"), *options, env=env, **k)


def run(*args, env=None, **k):
    return subprocess.run(list(args), capture_output=True, text=True, timeout=60 * SLOW, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, **(env or {})), **k)


# ---- the daemon's start ----------------------------------------------------------------------------------


@test
def a_start_that_fails_early_closes_what_it_has_opened():
    """Without descriptors there is no loop, long before there is a listener: standard input stays open."""
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    with Folder() as f:
        r = f.start("--event-loop", "epoll", env=preload(FAKE_CLOSE="0"), preexec_fn=few)
        assert r.returncode == 78 and "open files" in r.stderr and "is closed" not in r.stderr, r


@test
def a_lock_that_loses_its_name_again_and_again():
    with Folder() as f:
        r = f.start(env=preload(FAKE_LOST="1"))
        assert r.returncode == 78 and "s.lock: removed by others while it was locked, 100 times" in r.stderr, r


@test
def a_metrics_socket_that_cannot_be_made_is_nobodys():
    """What lies at its path stays: another program's socket, and a file."""
    with Folder() as f:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.bind(f.path("m"))
            f.write("n", "mine")
            for name in ("m", "n"):
                r = f.start("--metrics-socket", f.path(name), env=preload(FAKE_SOCKET=str(int(socket.SOCK_STREAM))))
                assert r.returncode == 78 and "socket: Too many open files" in r.stderr, r
        assert os.path.exists(f.path("m")) and f.read("n") == "mine" and not os.path.exists(f.path("s"))


# ---- lines -----------------------------------------------------------------------------------------------


@test
def a_line_that_finds_no_memory_is_not_the_end():
    """Of a batch's input, whether it is begun or gone on with, and of the results that are there: none is lost."""
    def texts(out):
        return [line.split('"usage"')[0] for line in out.splitlines()]
    d = Daemon()
    with Folder() as f:
        f.write("in", "".join('{"prompt": "%d", "max_tokens": 2}\n' % i for i in range(6)))
        batch = [CLIENT, "batch", "--raw", "--temperature", "0", "--quiet", "--socket", d.path, f.path("in")]
        whole = run(*batch)
        assert whole.returncode == 0 and whole.stdout.count("\n") == 6, whole
        for n in range(1, 7):
            r = run(*batch, env=preload(FAKE_LINE=str(n)))
            assert r.returncode == 1 and "in: a line is too long for the memory" in r.stderr, r
            assert texts(r.stdout) == texts(whole.stdout)[:n - 1], (n, r)
        f.write("out", "".join(line + "\n" for line in whole.stdout.split("\n")[:3]))
        before = f.read("out")
        for n in range(1, 8):  # three lines of results and the end of them, and as many of the input
            r = run(*batch, "--output", f.path("out"), env=preload(FAKE_LINE=str(n)))
            assert r.returncode == 1 and "out of memory" not in r.stderr and r.stderr.count("\n") == 1, (n, r)
            assert ("out: a line" if n < 5 else "in: a line") in r.stderr and f.read("out") == before, (n, r)
        assert run(*batch, "--output", f.path("out")).returncode == 0
        assert texts(f.read("out")) == texts(whole.stdout)
        r = run(CLIENT, "chat", "--socket", d.path, env=preload(FAKE_LINE="1"))
        assert r.returncode == 1 and "standard input: a line" in r.stderr, r
    d.stop()


# ---- files that are written whole ------------------------------------------------------------------------


@test
def a_new_file_that_cannot_be_given_a_name():
    """Whatever the reason, a file that has one from the start is written instead."""
    with Folder() as f:
        trace = f.write("trace", '{"trace": 1, "model": "m", "method": "ar"}\n')
        assert run(CLIENT, "trace-html", "-o", f.path("want"), trace).returncode == 0
        for why in (errno.EXDEV, errno.EINVAL, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOENT, errno.EPERM, errno.EACCES,
                    errno.ENOSYS, errno.ELOOP, errno.EEXIST, errno.EIO):
            for _ in range(2):  # a new file, and one that is replaced
                r = run(CLIENT, "trace-html", "-o", f.path("page"), trace, env=preload(FAKE_LINK=str(why)))
                assert r.returncode == 0 and f.read("page") == f.read("want"), r
            os.unlink(f.path("page"))
            assert sorted(os.listdir(f.name)) == ["conf", "trace", "want"]


# ---- the model store -------------------------------------------------------------------------------------


def add(f, name, **env):
    return run(CLIENT, "add", "--store", f.path("store"), "--name", name, MODEL, env=preload(**env))


@test
def what_cannot_be_removed_is_in_the_way_of_its_own_name_alone():
    """A leftover that stays: other names are added and removed, and the line says why it is there."""
    with Folder() as f:
        os.makedirs(f.path("store/.m.adding/m"))
        kept = f.write("store/.m.adding/m/kept", "")
        why = "store/.m.adding/m: cannot be removed: Operation not permitted"
        r = add(f, "other", FAKE_KEPT="kept")
        assert r.returncode == 0 and r.stderr.count("\n") == 1 and why + "; left as it is" in r.stderr, r
        r = run(CLIENT, "rm", "--store", f.path("store"), "other", env=preload(FAKE_KEPT="kept"))
        assert r.returncode == 0 and why in r.stderr and os.listdir(f.path("store")) == [".m.adding"], r
        for command in (("rm", "m"), ("add", "--name", "m", MODEL)):
            r = run(CLIENT, command[0], "--store", f.path("store"), *command[1:], env=preload(FAKE_KEPT="kept"))
            assert r.returncode == 1 and r.stderr.endswith(why + "\n") and r.stderr.count("\n") == 1, r
            assert os.path.exists(kept)
        assert add(f, "m").returncode == 0 and sorted(os.listdir(f.path("store"))) == ["m", "m.sha256"]


@test
def the_stores_names_last_in_their_order():
    """What a crash may leave: a folder with all its files before it gets its name; the sums go, for good, before the
    mark that says whose they are."""
    with Folder() as f:
        store = f.path("store")
        stage = store + "/.m.adding"

        def calls():
            with open(f.path("calls")) as c:
                lines = c.read().splitlines()
            os.unlink(f.path("calls"))
            return lines

        def before(lines, *wanted):
            at = [lines.index(w) for w in wanted]
            assert at == sorted(at), (wanted, lines)
        assert add(f, "m", FAKE_CALLS=f.path("calls")).returncode == 0
        copy, got = "rename %s/m %s/m" % (stage, store), calls()
        before(got, "fsync %s/m/config.json" % stage, "fsync %s/m" % stage, "rename %s/m.sha256 %s/m.sha256" % (stage, store),
               "fsync " + store, copy)
        assert got[-2:] == ["fsync " + store, "remove %s/.sums" % stage], got
        r = run(CLIENT, "rm", "--store", store, "m", env=preload(FAKE_CALLS=f.path("calls")))
        assert r.returncode == 0, r
        got = calls()[2:]  # nothing was left of an earlier one
        i = got.index("remove %s/m.sha256" % store)
        assert got[i - 2:i] == ["fsync " + stage, "fsync " + store] and \
            got[i + 1:i + 4] == ["fsync " + store, "remove %s/.sums" % stage, "fsync " + stage], got
        before(got, "rename %s/m %s/m" % (store, stage), "remove %s/m.sha256" % store, "remove %s/m" % stage)


sys.exit(main("refusals"))
