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
# Where the program looks depends on how it was configured.
conf=$("$build/daemon/dedit-d" --help | sed -n 's/.*configuration (\([^ ]*\) and.*/\1/p')
mkdir -p "$root/var/lib/dedit/models" "$root${conf%/*}"
cp -r "$golden/models/a_llama_tied" "$golden/models/c_qwen2" "$root/var/lib/dedit/models/"
sed -i 's|/usr/local/sbin|/usr/sbin|; s|@sbindir@|/usr/sbin|' "$root"/usr/lib/systemd/system/dedit-d.service
cat > "$root$conf" << 'X'
[daemon]
threads = 1
[limits]
max_requests_per_uid = 2
[model tiny]
path = a_llama_tied
preload = yes
X
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
stop_running() {
    in_it sh -c 'dedit-client generate --raw --ignore-eos -n 400 --quiet x > /tmp/out 2> /tmp/err; echo $? > /tmp/rc' &
    sleep 0.5
    in_it systemctl stop dedit-d.service dedit-d.socket && wait $! || return 1
    [ "$(in_it systemctl show -p Result --value dedit-d.service)" = success ] && in_it test -s /tmp/rc
}
ok 'stop with a request that runs' stop_running
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
