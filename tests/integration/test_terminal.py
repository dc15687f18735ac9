# SPDX-License-Identifier: Apache-2.0
"""dedit-client where somebody watches: chat, Ctrl-C, history, colours, progress, tables.  Speaks TAP."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback

TOP = os.environ["top_srcdir"]
BUILD = os.path.abspath(os.environ["top_builddir"])
CLIENT = os.path.join(BUILD, "client", "dedit-client")
MODEL = os.path.join(TOP, "tests", "golden", "models", "a_llama_tied")
scratch = tempfile.mkdtemp(prefix="dedit-terminal-")
ENV = dict(os.environ, DEDIT_SOCKET=os.path.join(scratch, "s"), TERM="xterm", LC_ALL="C",
           XDG_STATE_HOME=os.path.join(scratch, "state"))
ENV.pop("NO_COLOR", None)
tests = []


def test(f):
    tests.append(f)
    return f


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *args, env=None, stdin_is_terminal=True, stdout=None):
        main, other = pty.openpty()
        self.fd = main
        self.process = subprocess.Popen(
            [CLIENT] + list(args), stdin=other if stdin_is_terminal else subprocess.DEVNULL,
            stdout=stdout or other, stderr=other, env=dict(ENV, **(env or {})), start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(2, 0x540E, 0))  # TIOCSCTTY
        os.close(other)
        self.seen = ""

    def until(self, pattern, seconds=30):
        """Reads until the pattern is there; what was read before its end is taken."""
        deadline = time.monotonic() + seconds
        while True:
            m = re.search(pattern, self.seen, re.S)
            if m:
                text, self.seen = self.seen[:m.end()], self.seen[m.end():]
                return text
            left = deadline - time.monotonic()
            assert left > 0, "no %r in %r" % (pattern, self.seen)
            if select.select([self.fd], [], [], left)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    assert re.search(pattern, self.seen, re.S), "no %r in %r" % (pattern, self.seen)
                    continue
                self.seen += data.decode(errors="replace")

    def type(self, text):
        os.write(self.fd, text.encode())

    def leave(self):
        """Ctrl-D, again while the program does not see it."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                # One that the kernel took for the end of a line comes out as a NUL byte, which stays in the
                # line, and Ctrl-D ends the program on an empty line only: Ctrl-U first.
                self.type("\x15\x04")
                time.sleep(0.2)  # its echo comes at once, what it does a little later
                while select.select([self.fd], [], [], 0)[0]:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                pass
        return self.rest()

    def rest(self, seconds=30):
        """All that comes until the program ends, and its status."""
        deadline = time.monotonic() + seconds
        text = self.seen
        while time.monotonic() < deadline:
            if not select.select([self.fd], [], [], 0.1)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            text += data.decode(errors="replace")
        status = self.process.wait(max(1, deadline - time.monotonic()))
        os.close(self.fd)
        return text, status


CHAT = ("chat", "--chat-format", "chatml")


@test
def an_answer_and_its_statistics_with_colours():
    t = Terminal(*CHAT, "-n", "4")
    t.until("> ")
    t.type("hi\n")
    text = t.until("tokens/s.*\n")
    assert "\033[2m" in text and "first token after" in text, text
    t.type("/help\n")
    t.until("/undo")
    t.type("/quit\n")
    _, status = t.rest()
    assert status == 0, status


@test
def a_trace_in_colours():
    for env in ({"NO_COLOR": "1"}, {}):
        text, status = Terminal("generate", "--raw", "--ignore-eos", "-n", "4", "--method", "ar", "--trace", "hi",
                                env=env).rest()
        bold, bonus = ("", "") if env else ("\033[1m", "\033[1;36m")
        dim, end = ("", "") if env else ("\033[0;2m", "\033[0m")
        assert status == 0 and text.startswith("%sround 0%s at 0, 1 committed\r\n" % (bold, end)), text
        assert text.count("  text    " + bonus) == 4 and text.count(dim + "|" + end) == 4, text
        assert ("\033[" in text) == (not env), text


@test
def no_color_means_none():
    for env in ({"NO_COLOR": "1"}, {}):
        t = Terminal(*CHAT, "-n", "4", env=env)
        t.until("> ")
        t.type("hi\n")
        text = t.until("tokens/s[^\n]*\n")
        assert ("\033[2m" in text) == (not env), text
        t.until("> ")
        _, status = t.leave()
        assert status == 0, status


@test
def ctrl_c_stops_the_answer_and_not_the_program():
    t = Terminal(*CHAT, "-n", "1000000", "--ignore-eos", "-m", "slow")
    t.until("> ")
    t.type("hi\n")
    t.until("hi\r\n.{40}")
    t.type("\x03")
    text = t.until("cancelled\r?\n|length\r?\n")
    # At the prompt it drops what was typed.
    t.until("> ")
    t.type("not this")
    time.sleep(0.2)
    t.type("\x03")
    t.until("> ")
    t.type("/show\n")
    text = t.until("> $")
    assert "not this" not in text.split("/show", 1)[1], text
    t.type("/quit\n")
    _, status = t.rest()
    assert status == 0, status


@test
def lines_are_kept_and_can_be_edited():
    t = Terminal(*CHAT, "-n", "2")
    t.until("> ")
    t.type("fist\x7f\x7frst question\n")
    t.until("tokens/s|length|stop")
    t.until("> ")
    t.type("/quit\n")
    assert t.rest()[1] == 0
    with open(os.path.join(scratch, "state", "dedit", "chat_history")) as f:
        assert "first" in f.read().replace("\\040", " ")
    own = os.path.join(scratch, "own_history")
    for n in range(2):
        t = Terminal(*CHAT, "-n", "2", "--history", own)
        t.until("> ")
        t.type("kept\n" if n == 0 else "\x1b[A\x1b[A\n")  # the second time: before /show
        t.until("tokens/s|length|stop")
        t.until("> ")
        t.type("/show\n")
        t.until("user: kept.*> ")
        assert t.leave()[1] == 0


@test
def ctrl_c_ends_generate_with_130():
    for _ in range(5):
        t = Terminal("generate", "--raw", "--ignore-eos", "-n", "1000000", "-m", "slow", "x")
        t.until(".{5}")
        daemon.send_signal(signal.SIGSTOP)  # so that the answer does not end before
        time.sleep(0.1)
        t.type("\x03")
        time.sleep(0.5)
        daemon.send_signal(signal.SIGCONT)
        _, status = t.rest()
        if status == 130:
            return
        assert status == 0, status  # it was faster than we
    raise AssertionError("never interrupted")


@test
def a_batch_shows_its_progress():
    name = os.path.join(scratch, "in.jsonl")

    def write(n):
        with open(name, "w") as f:
            for i in range(n):
                f.write(json.dumps({"prompt": "number %d" % i, "max_tokens": 40}) + "\n\n")
    for n in (400, 2000, 10000, 50000):  # until it takes long enough to be seen
        write(n)
        with open(os.path.join(scratch, "out"), "w") as out:
            t = Terminal("batch", "--raw", "--ignore-eos", name, stdout=out)
            text, status = t.rest(120)
        assert status == 0, text
        lines = [l for l in text.split("\r") if "lines" in l]
        assert "[====================] %d of %d lines" % (n, n) in lines[-1], lines[-1]
        bar = r"\[=* *>? *\] \d+ of %d lines, 0 failed, \d+ running, [0-9.]+ tokens/s, \d+:\d\d left" % n
        if re.search(bar, text):
            break
    else:
        raise AssertionError(text)
    write(400)
    # None of it with --quiet, or when nobody watches.
    with open(os.path.join(scratch, "out"), "w") as out:
        text, status = Terminal("batch", "--raw", "-q", name, stdout=out).rest(120)
    assert status == 0 and text == "", text
    r = subprocess.run([CLIENT, "batch", "--raw", name], env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, check=True)
    assert r.stderr == b"" and r.stdout.count(b"\n") == 400, r.stderr


@test
def a_table_that_is_drawn_again():
    t = Terminal("stats", "--watch")
    first = t.until("requests running.*\033\\[2J.*requests running")
    assert "\033[H\033[2J" in first, first
    t.type("\x03")
    _, status = t.rest()
    assert status == 0, status
    t = Terminal("stats", "--watch", env={"NO_COLOR": "1"})
    text = t.until("requests running.*requests running")
    assert "\033" not in text, text
    t.type("\x03")
    t.rest()


@test
def no_colours_into_a_pipe():
    for args in (("stats",), ("models",), ("ping",), ("generate", "--raw", "-n", "3", "x")):
        r = subprocess.run([CLIENT] + list(args), env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, check=True)
        assert b"\033" not in r.stdout + r.stderr, r


@test
def a_prompt_is_asked_for():
    _, status = Terminal("generate").rest()
    assert status == 2, status


@test
def the_daemon_goes_away():
    t = Terminal(*CHAT, "-n", "4")
    t.until("> ")
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    t.type("hi\n")
    text, status = t.rest()
    assert status == 3 and "dedit-client: " in text, (status, text)


def start():
    conf = os.path.join(scratch, "conf")
    with open(conf, "w") as f:
        f.write("[model tiny]\npath = %s\npreload = yes\n[model slow]\npath = %s\n" % (MODEL, MODEL))
    log = open(os.path.join(scratch, "log"), "w+")
    p = subprocess.Popen([os.path.join(BUILD, "daemon", "dedit-d"), "--socket", ENV["DEDIT_SOCKET"], "--config", conf,
                          "--threads", "1"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    for _ in range(600):
        if subprocess.run([CLIENT, "ping"], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return p
        time.sleep(0.05)
    raise AssertionError("the daemon is not ready: " + open(log.name).read())


daemon = start()
wanted = sys.argv[1:]
chosen = [t for t in tests if not wanted or t.__name__ in wanted]
print("1..%d" % len(chosen), flush=True)
for number, t in enumerate(chosen, 1):
    name = t.__name__.replace("_", " ")
    try:
        t()
        print("ok %d - %s" % (number, name), flush=True)
    except Exception:
        print("not ok %d - %s" % (number, name))
        print("\n".join("# " + l for l in traceback.format_exc().splitlines()), flush=True)
if daemon.poll() is None:
    daemon.kill()
subprocess.run(["rm", "-rf", scratch])
