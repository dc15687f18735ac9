#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shipped units under a real systemd as PID 1: a throw-away system on an overlay of this one, in
# which dedit is installed.  Needs root, systemd-nspawn and overlayfs.
# shellcheck disable=SC2016
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"

if [ "$(id -u)" -ne 0 ] || ! command -v systemd-nspawn > /dev/null; then
    echo '1..0 # SKIP hardware: the units are tested as root with systemd-nspawn'
    exit 0
fi
build=$(cd "${top_builddir:-.}" && pwd)
# Where the program looks depends on how it was configured.
conf=$("$build/daemon/dedit-d" --help | sed -n 's/.*configuration (\([^ ]*\) and.*/\1/p')
case $conf in
    /tmp/* | /var/tmp/* | /home/* | /root/*)
        # As in "make distcheck": PrivateTmp= and ProtectHome= hide it.
        echo "1..0 # SKIP a service cannot see $conf: configure with a prefix elsewhere"
        exit 0
        ;;
esac
work=$(mktemp -d "${TMPDIR:-/tmp}/dedit-systemd.XXXXXX") || exit 1
name=dedit$$
root=$work/root/merged
groups=/sys/fs/cgroup/unified
[ -d "$groups" ] || groups=/sys/fs/cgroup
nspawn=
leader=

clean() {
    [ -z "$leader" ] || timeout 20 nsenter -t "$leader" -a systemctl poweroff > /dev/null 2>&1
    tries=0
    while [ -n "$nspawn" ] && kill -0 "$nspawn" 2> /dev/null && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    [ -z "$nspawn" ] || kill -9 "$nspawn" 2> /dev/null
    umount -l "$root" 2> /dev/null
    umount -l "$work/root" 2> /dev/null
    find "$groups/$name" "/sys/fs/cgroup/systemd/$name" -depth -type d -exec rmdir {} \; 2> /dev/null
    rm -rf "$work" "$scratch"
}
trap clean EXIT

overlay() {
    mkdir "$work/root" && mount -t tmpfs -o size=1g "$name" "$work/root" &&
        mkdir "$work/root/upper" "$work/root/work" "$root" &&
        mount -t overlay overlay -o "lowerdir=/,upperdir=$work/root/upper,workdir=$work/root/work" "$root"
}
if ! overlay; then
    echo '1..0 # SKIP hardware: no overlay file system can be mounted here'
    exit 0
fi
: > "$root/etc/machine-id"
for service in postgresql sysstat; do
    ln -sf /dev/null "$root/etc/systemd/system/$service.service"
done
install_it() { make -C "$build" install DESTDIR="$root" prefix=/usr sysconfdir=/etc; }
ok 'make install into the system' install_it
chroot "$root" ldconfig
mkdir -p "$root/var/lib/dedit/models" "$root${conf%/*}"
for m in a_llama_tied b_llama_rope3 c_qwen2 d_qwen3 e_odd; do cp -r "$golden/models/$m" "$root/var/lib/dedit/models/"; done
default=${DEDIT_TEST_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/dedit/models/SmolLM2-135M-Instruct.Q4_1.gguf}
[ ! -f "$default" ] || cp "$default" "$root/var/lib/dedit/models/smollm2.gguf"
sed -i 's|/usr/local/sbin|/usr/sbin|; s|@sbindir@|/usr/sbin|' "$root"/usr/lib/systemd/system/dedit-d.service
# exact: the reference knows nothing of the class that machines with AMX have for BF16 weights.
cat > "$root$conf" << 'X'
[daemon]
threads = 1
exact = yes
[limits]
max_requests_per_uid = 2
[model tiny]
path = a_llama_tied
preload = yes
[model b_llama_rope3]
path = b_llama_rope3
[model c_qwen2]
path = c_qwen2
[model d_qwen3]
path = d_qwen3
[model e_odd]
path = e_odd
X
[ ! -f "$default" ] || printf '[model smollm2]\npath = smollm2.gguf\n' >> "$root$conf"
mkdir -p "$groups/$name"
(
    sh -c 'echo $PPID' > "$groups/$name/cgroup.procs"
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec setsid systemd-nspawn --quiet --register=no --keep-unit \
        --machine="$name" -D "$root" --console=read-only --kill-signal=SIGRTMIN+3 -b \
        < /dev/null > "$work/log" 2>&1
) &
nspawn=$!
tries=0
while [ $tries -lt 400 ]; do
    tries=$((tries + 1))
    leader=$(pgrep -P "$nspawn" -x systemd)
    if [ -n "$leader" ]; then
        case $(timeout 10 nsenter -t "$leader" -a systemctl is-system-running --wait 2> /dev/null) in
            running | degraded) break ;;
        esac
    fi
    sleep 0.05
done
in_it() { timeout 60 nsenter -t "$leader" -a -- "$@"; }
as() { in_it setpriv --reuid "$1" --regid "$1" --groups "$2" -- sh -c "$3"; }
booted() { [ -n "$leader" ] && in_it systemctl is-system-running | grep -qE 'running|degraded'; }
ok 'systemd is up' booted

users() {
    in_it systemd-sysusers && in_it systemd-tmpfiles --create --prefix=/run/dedit --prefix=/var/lib/dedit &&
        in_it chown -R dedit:dedit /var/lib/dedit && in_it id dedit
}
ok 'user and folders' users
verify() { in_it systemd-analyze verify dedit-d.service dedit-d.socket 2>&1 | grep -v -i 'man page' | grep 'dedit' && return 1; return 0; }
ok 'units verify' verify
security() {
    score=$(in_it systemd-analyze security --no-pager dedit-d.service | sed -n 's/.*level for dedit-d.service: \([0-9.]*\).*/\1/p')
    echo "exposure $score"
    [ -n "$score" ] && [ "$(printf '%s\n1.5\n' "$score" | sort -g | head -n 1)" = "$score" ]
}
ok 'exposure of at most 1.5' security
in_it systemctl daemon-reload
ask() { in_it dedit-client generate --raw --temperature 0 --max-tokens 8 --ignore-eos --quiet hello; }
activation() {
    in_it systemctl start dedit-d.socket && [ "$(in_it systemctl is-active dedit-d.service)" != active ] || return 1
    ask > "$scratch/first" && [ -s "$scratch/first" ] && in_it systemctl is-active dedit-d.service
}
ok 'the first request starts the service' activation
same() {
    "$bench" generate --model "$golden/models/a_llama_tied" --raw --temperature 0 --max-tokens 8 --ignore-eos hello > "$scratch/want" 2> /dev/null
    cmp "$scratch/want" "$scratch/first"
}
ok 'the same bytes as the engine by itself' same
status_text() { in_it systemctl show -p StatusText dedit-d.service | grep 'Serving 1 model'; }
ok 'status says what is served' status_text
# What the unit denies is done without: no page is writable and executable, so no compiled patterns; no affinity.
denied() {
    main=$(in_it systemctl show -p MainPID --value dedit-d.service)
    [ "$(in_it systemctl show -p MemoryDenyWriteExecute --value dedit-d.service)" = yes ] &&
        ! in_it grep -E '^[^ ]* .w?x' "/proc/$main/maps" | grep -q ' .wx' &&
        in_it grep -q '^Seccomp:.*2$' "/proc/$main/status" || return 1
    # Quietly: nothing that an operator would have to read.
    [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" = 0 ] || return 1
    in_it journalctl -u dedit-d.service _COMM=dedit-d -p warning -o cat --no-pager | grep -v '^-- ' > "$scratch/warnings"
    [ ! -s "$scratch/warnings" ] || { cat "$scratch/warnings"; return 1; }
}
ok 'what the unit denies is done without, quietly' denied
# Greedy tokens of the reference, where its margin is no matter of rounding.
golden_ids() {
    python3 - "$golden/models" "$leader" << 'X'
import json, subprocess, sys
folder, leader = sys.argv[1:]
n = 0
for model, name in (("a_llama_tied", "tiny"), ("b_llama_rope3",) * 2, ("c_qwen2",) * 2, ("d_qwen3",) * 2, ("e_odd",) * 2):
    with open("%s/%s.oracle.json" % (folder, model)) as f:
        for p in json.load(f)["prompts"]:
            want = []
            for token, margin in zip(p["greedy"], p["margin"]):
                if margin <= 2e-3:
                    break
                want.append(token)
            if not want:
                continue
            out = subprocess.run(["nsenter", "-t", leader, "-a", "--", "dedit-client", "generate", "-m", name, "--ids", "--json",
                                  "--temperature", "0", "--ignore-eos", "-n", str(len(want))] + [str(i) for i in p["prompt"]],
                                 stdout=subprocess.PIPE, check=True, timeout=120).stdout
            got = [t["id"] for line in out.splitlines() for t in json.loads(line).get("tokens", ())]
            assert got == want, (model, p["prompt"], got, want)
            n += len(want)
assert n > 100, n
print(n, "tokens")
X
}
ok 'golden: the tokens of the reference, under the unit' golden_ids
with_default() {
    if [ -f "$default" ]; then ok "$@"; else
        tests_run=$((tests_run + 1))
        echo "ok $tests_run - $1 # SKIP the default model is not in the cache: models/fetch"
    fi
}
ask_default() { in_it dedit-client generate -m smollm2 --temperature 0 -n 48 --ignore-eos --json 'Tell me about the sea.'; }
default_model() {
    ask_default > "$scratch/got.json" && python3 -c '
import json, sys
print("".join(json.loads(l)["text"] for l in open(sys.argv[1]) if "text" in json.loads(l)))' "$scratch/got.json" > "$scratch/got" &&
        "$bench" generate --model "$default" --chat smollm2 --temperature 0 --max-tokens 48 --ignore-eos 'Tell me about the sea.' > "$scratch/want" 2> /dev/null || return 1
    cmp "$scratch/want" "$scratch/got" || return 1
    # Patterns without a compiler: a text that needs all of them.
    printf '%s' "$(head -c 30000 "$top/README.md")" > "$root/srv/text" && "$bench" tokenize --model "$default" "$(cat "$root/srv/text")" > "$scratch/want" &&
        in_it sh -c 'dedit-client tokenize -m smollm2 < /srv/text' > "$scratch/got" || return 1
    tr -s ' ,\n[]' '\n' < "$scratch/want" > "$scratch/want.ids" && tr -s ' \n' '\n' < "$scratch/got" > "$scratch/got.ids" && cmp "$scratch/want.ids" "$scratch/got.ids" &&
        [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" = 0 ]
}
with_default 'the default model: text and tokens of the engine by itself' default_model
# The same daemon under the unit and outside, in turn: the same answers.  The best times of eight are told, not
# judged: other programs may hold a CPU.
speed() {
    "$build/daemon/dedit-d" --socket "$scratch/s" --config "$scratch/none" --threads 1 --model smollm2="$default" 2> "$scratch/log" &
    outside=$!
    tries=0
    until "$build/client/dedit-client" ping -S "$scratch/s" > /dev/null 2>&1 || [ $tries -ge 400 ]; do tries=$((tries + 1)); sleep 0.05; done
    for i in 1 2 3 4 5 6 7 8; do
        "$build/client/dedit-client" generate -S "$scratch/s" -m smollm2 --temperature 0 -n 48 --ignore-eos --json 'Tell me about the sea.' >> "$scratch/out.json"
        ask_default >> "$scratch/in.json"
    done
    kill $outside && wait $outside
    python3 - "$scratch/in.json" "$scratch/out.json" << 'X'
import json, sys
def read(path):
    lines = [json.loads(l) for l in open(path)]
    use = [l["usage"] for l in lines if "usage" in l]
    assert len(use) == 8 and all(u["completion_tokens"] == 48 for u in use), use
    return ([t["id"] for l in lines for t in l.get("tokens", [])],
            min((u["total_ms"] - u["time_to_first_token_ms"]) / 47 for u in use))
(a, inside), (b, outside) = read(sys.argv[1]), read(sys.argv[2])
print("# ms a token: %.2f under the unit, %.2f outside" % (inside, outside))
assert len(a) == 8 * 48 and a == b
X
}
: > "$scratch/none"
with_default 'speed under the unit' speed
reload() {
    before=$(in_it systemctl show -p MainPID --value dedit-d.service)
    in_it sh -c 'printf "[model two]\npath = c_qwen2\n" >> "$0"' "$conf" && in_it systemctl reload dedit-d.service &&
        in_it dedit-client models two && in_it dedit-client generate -m two --raw -n 3 --quiet x &&
        [ "$before" = "$(in_it systemctl show -p MainPID --value dedit-d.service)" ]
}
ok 'reload adds a model' reload
bad_reload() {
    in_it sh -c 'echo "nonsense = 1" >> "$0"' "$conf" && in_it systemctl reload dedit-d.service
    ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" || return 1
    in_it journalctl -u dedit-d.service -o cat --no-pager | grep 'nonsense' && in_it sed -i '/nonsense/d' "$conf"
}
ok 'a wrong configuration changes nothing' bad_reload
killed() {
    in_it systemctl kill -s KILL dedit-d.service
    sleep 2
    ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" && [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" -ge 1 ]
}
ok 'SIGKILL: started again' killed
# Clients that keep their connection and wait for answers, through an upgrade and a crash: an error at once, and by
# connecting again the rest of the answers.
cat > "$root/srv/asks" << 'X'
#!/bin/sh
while [ ! -e /srv/enough ]; do
    dedit-client batch --raw --ignore-eos -n 100 -p 1 -q --output "/srv/answers.$1" /srv/lines 2> "/srv/err.$1.now"
    echo "$? $(date +%s%N) $(tail -n 1 "/srv/err.$1.now")" >> "/srv/asked.$1"
done
X
yes '{"prompt":"x"}' | head -n 1000000 > "$root/srv/lines"
asking() {
    rm -f "$root"/srv/asked.* "$root"/srv/answers.* "$root/srv/enough"
    for i in 1 2; do in_it sh /srv/asks $i & done
    sleep 2
    date +%s%N > "$scratch/from"
    "$@"
    happened=$?
    date +%s%N > "$scratch/to"
    sleep 1.5
    wc -l < "$root/srv/answers.1" > "$scratch/after.1"
    wc -l < "$root/srv/answers.2" > "$scratch/after.2"
    sleep 2
    touch "$root/srv/enough"
    in_it pkill -TERM -x dedit-client
    sleep 0.5
    [ $happened -eq 0 ] && python3 - "$scratch" "$root/srv" << 'X'
import json, sys
scratch, srv = sys.argv[1:]
start, end = (int(open("%s/%s" % (scratch, n)).read()) for n in ("from", "to"))
for who in "12":
    asked = [l.split(" ", 2) for l in open("%s/asked.%s" % (srv, who))]
    during = [(int(s), int(t), w.strip()) for s, t, w in asked if s != "143"]
    print(who, during)
    assert during and all(s == 3 for s, _, _ in during), during
    # Told while it happened, and why.
    assert start < during[0][1] < end + 3e9 and during[0][2], (start, end, during)
    answers = [json.loads(l) for l in open("%s/answers.%s" % (srv, who)).read().split("\n")[:-1]]
    assert [a["line"] for a in answers] == list(range(1, len(answers) + 1))
    assert all("usage" in a for a in answers), [a for a in answers if "usage" not in a][:3]
    assert all(a["usage"]["completion_tokens"] == 100 for a in answers)
    assert len(answers) > int(open("%s/after.%s" % (scratch, who)).read()) > 0
X
}
upgrade() {
    before=$(in_it systemctl show -p MainPID --value dedit-d.service)
    asking in_it systemctl restart dedit-d.service && [ "$before" != "$(in_it systemctl show -p MainPID --value dedit-d.service)" ]
}
ok 'upgrade: clients that wait get an error, connect again, succeed' upgrade
crash() { asking in_it systemctl kill -s KILL dedit-d.service; }
ok 'crash: the same' crash
# A stopped process feeds no watchdog.
watchdog() {
    in_it mkdir -p /run/systemd/system/dedit-d.service.d &&
        in_it sh -c 'printf "[Service]\nWatchdogSec=2s\n" > /run/systemd/system/dedit-d.service.d/w.conf' &&
        in_it systemctl daemon-reload && in_it systemctl restart dedit-d.service && ask > /dev/null || return 1
    before=$(in_it systemctl show -p NRestarts --value dedit-d.service)
    sleep 3
    [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" = "$before" ] || return 1
    in_it systemctl kill -s STOP dedit-d.service
    sleep 6
    ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" && [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" -gt "$before" ]
}
ok 'watchdog: a daemon that hangs is started again, one that runs is not' watchdog
two_users() {
    in_it useradd -u 2001 -G dedit one && in_it useradd -u 2002 -G dedit two && in_it useradd -u 2003 three || return 1
    group=$(in_it getent group dedit | cut -d: -f3)
    as 2001 "$group" 'dedit-client generate --raw -n 3 --quiet x' || return 1
    # Sixty at once of one user are over its limit of two; another user is not touched by it.
    as 2001 "$group" 'yes "{\"prompt\":\"a\"}" | head -n 60 | dedit-client batch --raw --ignore-eos -n 400 -p 60' > "$scratch/one"
    grep -q 'max_requests_per_uid' "$scratch/one" && grep -q '"finish_reason":"length"' "$scratch/one" || return 1
    as 2002 "$group" 'dedit-client generate --raw -n 3 --quiet x' || return 1
    as 2002 "$group" 'dedit-client unload tiny' && return 1
    as 2003 2003 'dedit-client ping' && return 1
    return 0
}
ok 'users: access by group, quotas by user, orders by privilege' two_users
# A daemon of one user, by activation: its own socket, configuration and models.
user_unit() {
    in_it loginctl enable-linger one || in_it systemctl start user@2001.service || return 1
    tries=0
    until as 2001 2001 'XDG_RUNTIME_DIR=/run/user/2001 systemctl --user is-system-running' | grep -E 'running|degraded'; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || return 1
        sleep 0.2
    done
    in_it sh -c 'mkdir -p /home/one/.cache/dedit/models /home/one/.config/dedit && cp -r /var/lib/dedit/models/c_qwen2 /home/one/.cache/dedit/models/mine &&
        printf "[daemon]\nthreads = 1\n[model mine]\npath = mine\npreload = yes\n" > /home/one/.config/dedit/dedit.conf && chown -R 2001:2001 /home/one' || return 1
    user='export HOME=/home/one XDG_RUNTIME_DIR=/run/user/2001;'
    sed -i 's|/usr/local/sbin|/usr/sbin|; s|@sbindir@|/usr/sbin|' "$root"/usr/lib/systemd/user/dedit-d.service
    as 2001 2001 "$user systemctl --user daemon-reload; systemctl --user enable --now dedit-d.socket && systemctl --user is-active dedit-d.service" | grep -q inactive || return 1
    as 2001 2001 "$user dedit-client generate --raw --temperature 0 -n 8 --ignore-eos --quiet hello" > "$scratch/got" &&
        "$bench" generate --model "$golden/models/c_qwen2" --raw --temperature 0 --max-tokens 8 --ignore-eos hello > "$scratch/want" 2> /dev/null &&
        cmp "$scratch/want" "$scratch/got" && as 2001 2001 "$user systemctl --user is-active dedit-d.service && dedit-client models mine" || return 1
    as 2001 2001 "$user systemctl --user restart dedit-d.service && dedit-client ping && systemctl --user stop dedit-d.service dedit-d.socket && systemctl --user show -p Result --value dedit-d.service" | grep -q success
}
ok 'user unit: activation, its own models, restart, stop' user_unit
metrics() { in_it python3 -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/dedit/metrics.sock")
s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
d = b""
while True:
    m = s.recv(65536)
    if not m: break
    d += m
assert b"dedit_generation_tokens_total" in d, d
'; }
ok 'metrics' metrics
# The examples of the documentation, on a port that is likely free: the network is that of this machine.
port=$((20000 + $$ % 20000))
proxied() {
    examples=$(dirname "$(find "$root/usr" -name dedit-metrics-proxy.socket | head -n 1)")
    cp "$examples"/dedit-metrics-proxy.* "$root/etc/systemd/system/" && in_it systemctl cat dedit-metrics-proxy.socket | grep -q 127.0.0.1:9464 || return 1
    sed -i "s/127.0.0.1:9464/127.0.0.1:$port/" "$root/etc/systemd/system/dedit-metrics-proxy.socket"
    in_it systemctl daemon-reload && in_it systemctl start dedit-metrics-proxy.socket &&
        in_it python3 -c 'import sys, urllib.request
text = urllib.request.urlopen("http://127.0.0.1:%s/metrics" % sys.argv[1], timeout=20).read()
assert b"\ndedit_generation_tokens_total" in text, text' "$port" && in_it systemctl stop dedit-metrics-proxy.socket dedit-metrics-proxy.service
}
ok 'metrics on a loopback port by the example units' proxied
gpu() {
    in_it mkdir -p /etc/systemd/system/dedit-d.service.d && cp "$(find "$root/usr" -name gpu.conf | head -n 1)" "$root/etc/systemd/system/dedit-d.service.d/" &&
        in_it systemctl daemon-reload && verify && in_it systemctl restart dedit-d.service && ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" || return 1
    [ "$(in_it systemctl show -p PrivateDevices --value dedit-d.service)" = no ] && in_it rm /etc/systemd/system/dedit-d.service.d/gpu.conf &&
        in_it systemctl daemon-reload && in_it systemctl restart dedit-d.service
}
ok 'the drop-in for graphics processors' gpu
# A device that is lost, the emulated one: the request that runs is told, the process ends with 75 to be started
# again, and serves.
restarts() { in_it systemctl show -p NRestarts --value dedit-d.service; }
ask_gpu() { in_it dedit-client generate -m gpu --ids --temperature 0 -n "$1" --ignore-eos --quiet 1 2 3; }
lose_it() {
    : > "$scratch/runs"
    ask_gpu 400 > "$scratch/runs" 2> "$scratch/err" &
    asks=$!
    tries=0
    until [ -s "$scratch/runs" ] || [ $tries -ge 300 ]; do tries=$((tries + 1)); sleep 0.1; done
    echo 700 > "$root/srv/lost.new" && chmod 644 "$root/srv/lost.new" && mv "$root/srv/lost.new" "$root/srv/lost"
    wait $asks
    told=$?
    rm -f "$root/srv/lost"
    cat "$scratch/err"
    [ $told -ne 0 ] && grep -q 'the device is lost' "$scratch/err"
}
lost_device() {
    in_it rm -f /run/systemd/system/dedit-d.service.d/w.conf
    cp "$build/libdedit-cuda-emu.so" "$root/usr/lib/" && in_it mkdir -p /run/systemd/system/dedit-d.service.d &&
        in_it sh -c 'printf "[Service]\nEnvironment=DEDIT_CUDA_EMU=/usr/lib/libdedit-cuda-emu.so CUEMU_FAIL=/srv/lost CUEMU_CHECK=1000\n" > /run/systemd/system/dedit-d.service.d/emu.conf' &&
        in_it sh -c 'printf "[model gpu]\npath = d_qwen3\ndevice = emu\nmax_num_seqs = 1\npreload = yes\n" >> "$0"' "$conf" &&
        in_it systemctl daemon-reload && in_it systemctl restart dedit-d.service && ask_gpu 2 > "$scratch/on_gpu" && [ -s "$scratch/on_gpu" ] || return 1
    before=$(restarts)
    lose_it || return 1
    tries=0
    until [ "$(restarts)" -gt "$before" ] && [ "$(in_it systemctl is-active dedit-d.service)" = active ]; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || return 1
        sleep 0.1
    done
    in_it journalctl -u dedit-d.service -o cat --no-pager | grep 'status=75' && ask_gpu 2 > "$scratch/got" && cmp "$scratch/on_gpu" "$scratch/got" &&
        [ "$(restarts)" -eq $((before + 1)) ]
}
device() {
    cp "$root$conf" "$scratch/conf" || return 1
    lost_device
    lost=$?
    cat "$scratch/conf" > "$root$conf" && in_it rm -f /run/systemd/system/dedit-d.service.d/emu.conf && in_it systemctl daemon-reload &&
        in_it systemctl restart dedit-d.service && ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" && [ $lost -eq 0 ]
}
if [ -f "$build/libdedit-cuda-emu.so" ]; then
    ok 'a device that is lost: started again' device
else
    tests_run=$((tests_run + 1))
    echo "ok $tests_run - a device that is lost # SKIP the emulated device is not built"
fi
stop_running() {
    in_it sh -c 'dedit-client generate --raw --ignore-eos -n 400 --quiet x > /tmp/out 2> /tmp/err; echo $? > /tmp/rc' &
    sleep 0.5
    in_it systemctl stop dedit-d.service dedit-d.socket && wait $! || return 1
    [ "$(in_it systemctl show -p Result --value dedit-d.service)" = success ] && in_it test -s /tmp/rc
}
ok 'stop with a request that runs' stop_running
# One that runs for longer than it is given: a last record that says so, not an end in the middle.
stop_cuts() {
    in_it sed -i 's/^\[daemon\]/&\ndrain_timeout = 300ms/' "$conf" && in_it systemctl start dedit-d.service || return 1
    in_it sh -c 'dedit-client generate -m smollm2 -n 2000 --ignore-eos --quiet x > /srv/out 2> /srv/err; echo $? > /srv/rc' &
    tries=0
    until [ "$(wc -c < "$root/srv/out")" -gt 20 ] || [ $tries -ge 200 ]; do tries=$((tries + 1)); sleep 0.1; done
    in_it systemctl stop dedit-d.service dedit-d.socket && wait $! || return 1
    in_it cat /srv/rc /srv/err
    [ "$(in_it systemctl show -p Result --value dedit-d.service)" = success ] && [ "$(in_it cat /srv/rc)" = 1 ] && in_it grep -q shutdown /srv/err &&
        in_it sed -i '/^drain_timeout/d' "$conf"
}
: > "$root/srv/out"
with_default 'stop with a request that would run on: a last record' stop_cuts
# Without the socket unit the daemon makes its own; the command of the manual starts both.
by_itself() {
    in_it systemctl mask --runtime dedit-d.socket && in_it systemctl start dedit-d.service && in_it systemctl is-active dedit-d.service &&
        [ "$(in_it systemctl is-active dedit-d.socket)" != active ] && ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" &&
        in_it systemctl stop dedit-d.service && in_it systemctl unmask --runtime dedit-d.socket
}
ok 'without the socket unit' by_itself
enable() {
    in_it sh -c "$(sed -n 's/^\.Dl # \(systemctl .*\)/\1/p' "$top/man/dedit-d.8")" && in_it systemctl is-enabled dedit-d.socket dedit-d.service &&
        ask > "$scratch/got" && cmp "$scratch/first" "$scratch/got" && in_it systemctl stop dedit-d.service dedit-d.socket
}
ok 'the command of dedit-d(8)' enable
unreadable() {
    in_it chmod 0700 /var/lib/dedit/models/a_llama_tied && in_it chown root:root /var/lib/dedit/models/a_llama_tied && in_it systemctl reset-failed
    in_it systemctl start dedit-d.service
    sleep 1
    [ "$(in_it systemctl show -p ExecMainStatus --value dedit-d.service)" = 78 ] &&
        [ "$(in_it systemctl show -p NRestarts --value dedit-d.service)" = 0 ] &&
        in_it journalctl -u dedit-d.service -o cat --no-pager | tail -n 20 | grep '/var/lib/dedit/models/a_llama_tied'
}
ok 'a model folder that cannot be read stops the start once' unreadable
finish
