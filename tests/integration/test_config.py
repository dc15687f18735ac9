# SPDX-License-Identifier: Apache-2.0
"""What --check-config says, and what a start does.  Speaks TAP."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import DAEMON, MODELS, SLOW, Daemon, main, test  # noqa: E402


def wait_log(d, text, seconds=20):
    deadline = time.monotonic() + seconds * SLOW
    while text not in d.text():
        assert time.monotonic() < deadline, d.text()
        time.sleep(0.02)


def run(args):
    return subprocess.run([DAEMON] + args, capture_output=True, text=True, timeout=60 * SLOW)


@test
def a_check_agrees_with_a_start():
    """What one refuses the other does, with the key and its line; what a start goes on with is a warning or nothing."""
    base = tempfile.mkdtemp(prefix="dt", dir="/tmp")
    model = os.path.join(MODELS, "a_llama_tied")
    with open(base + "/file", "w"):
        pass
    shutil.copytree(model, base + "/wordless")
    os.unlink(base + "/wordless/tokenizer.json")
    for name in ("folder", "text"):
        os.mkdir(base + "/" + name)
    os.symlink(base, base + "/alias")
    m = "[model m]\npath = %s\npreload = yes\n" % model
    sock = "[daemon]\nsocket = %s/s\n" % base
    nowhere = base + "/nowhere/x"
    cases = [  # configuration, line, words of both, words of the check alone
        (sock + m + "max_context = 100000\n", 6, "max_context", "the model has"),
        (sock + m + "max_num_batched_tokens = 70000\n", 6, "max_num_batched_tokens", "must be 1..65536"),
        (sock + m + "max_num_seqs = 600\n", 6, "max_num_seqs", "must be 1..512"),
        (sock + m + "kv_bytes = 1\n", 6, "kv_bytes", "one block"),
        (sock + m + "device = cuda:63\n", 6, "", "[model m] device: "),
        (sock + m + "chat_format = esperanto\n", 6, '[model m] chat_format: "esperanto" is not chatml', ""),
        (sock + "memory_limit = 1K\n" + m, 3, "memory_limit is", "[daemon] memory_limit: [model m]: "),
        (sock + "[model m]\npath = %s/wordless\npreload = yes\n" % base, 4, "tokenizer.json", "[model m] path: "),
        ("[daemon]\nsocket = %s/folder\n" % base, 2, "/folder: exists and is no socket", "[daemon] socket: "),
        ("[daemon]\nsocket = %s/file\n" % base, 2, "/file: exists and is no socket", "[daemon] socket: "),
        ("[daemon]\nsocket = %s\n" % nowhere, 2, "/nowhere: No such file", "[daemon] socket: "),
        (sock + "socket_group = no-such\n", 3, "socket_group: there is no group no-such", "[daemon] "),
        (sock + "metrics_socket = %s/file\n" % base, 3, "/file: exists and is no socket", "[daemon] metrics_socket: "),
        (sock + "metrics_socket = %s\n" % nowhere, 3, "No such file", "[daemon] metrics_socket: "),
    ] + [
        (sock + "%s = %s\n" % (key, path), 3, "[daemon] %s: %s: is the socket %s" % (key, path, what), "")
        for key, path, what in (("metrics_socket", base + "/s", "that clients connect to"),
                                ("metrics_socket", base + "/alias/s", "that clients connect to"),
                                ("metrics_textfile", base + "/alias/s", "that clients connect to"),
                                ("metrics_textfile", base + "/s-metrics", "of the metrics"))
    ]
    try:
        for text, line, words, more in cases:
            with open(base + "/conf", "w") as f:
                f.write(text)
            args = ["--config", base + "/conf", "--threads", "1"]
            check, start = run(args + ["--check-config"]), run(args)
            place = "dedit-d: %s/conf:%d: " % (base, line)
            assert check.returncode == start.returncode == 78, (text, check, start)
            assert check.stderr.startswith(place) and check.stderr.count("\n") == 1, (text, check)
            assert words in check.stderr and more in check.stderr and words in start.stderr, (text, check, start)
            assert more or start.stderr.startswith(place), (text, start)
        # Warnings: with them a check is passed, and a daemon serves.
        for key, value, words in (("metrics_textfile", nowhere, "/nowhere: No such file"),
                                  ("metrics_textfile", base + "/text", "/text: is a folder"),
                                  ("model_dir", nowhere, "No such file"), ("costs_dir", base + "/file", "is no folder")):
            text = "[daemon]\n%s = %s\n" % (key, value)
            d = Daemon(conf=text)
            check = run(d.args[1:] + ["--check-config"])  # while the daemon runs
            assert check.returncode == 0 and check.stderr.count("\n") == 1, check
            assert check.stderr.startswith("dedit-d: %s/conf:2: warning: [daemon] %s: " % (d.dir, key)), check
            assert words in check.stderr, check
            if key == "metrics_textfile":
                wait_log(d, "metrics_textfile: ")
            d.stop()
    finally:
        shutil.rmtree(base)


@test
def a_check_knows_systemds_socket():
    """With a socket that is passed, nothing of `socket` is used; a wrong one is told, and it stays with who passed it."""
    base = tempfile.mkdtemp(prefix="dt", dir="/tmp")
    with open(base + "/conf", "w") as f:
        f.write("[daemon]\nsocket = /nowhere/s\nsocket_group = no-such\n")
    passing = ("import os,socket,sys\ns = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))\ns.bind(sys.argv[1])\n"
               "s.listen()\n[(os.dup2(s.fileno(), n), os.set_inheritable(n, True)) for n in (3, 4)]\nos.environ.update(LISTEN_FDS=sys.argv[3], LISTEN_PID=str(os.getpid()))\n"
               "os.execv(sys.argv[4], sys.argv[4:])")

    def check(kind, n, *options):
        if os.path.exists(base + "/s"):
            os.unlink(base + "/s")
        return subprocess.run([sys.executable, "-c", passing, base + "/s", kind, n, DAEMON, "--config", base + "/conf",
                               "--check-config"] + list(options), capture_output=True, text=True, timeout=60)
    try:
        r = check("SOCK_SEQPACKET", "1")
        assert r.returncode == 0 and not r.stderr, r
        r = check("SOCK_STREAM", "1")
        assert r.returncode == 78 and r.stderr.startswith("dedit-d: LISTEN_FDS: descriptor 3 is no listening"), r
        r = check("SOCK_SEQPACKET", "2")
        assert r.returncode == 78 and r.stderr == "dedit-d: LISTEN_FDS: 2 descriptors were passed, must be 1\n", r
        r = check("SOCK_SEQPACKET", "1", "--metrics-socket", base + "/s")
        assert r.returncode == 78 and "metrics_socket: %s/s: is the socket that clients" % base in r.stderr, r
        assert run(["--config", base + "/conf", "--check-config"]).returncode == 78  # without
    finally:
        shutil.rmtree(base)


sys.exit(main("config"))
