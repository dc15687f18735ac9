#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/lib.sh: what is installed for whom, with false dpkg-query, apt-get, sudo and id.
set -u
export LC_ALL=C
top=${top_srcdir:-.}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dedit-packages-XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok() {
    status=$?
    n=$((n + 1))
    if [ $status -eq 0 ]; then echo "ok $n - $1"; else
        echo "not ok $n - $1"
        for f in out err calls; do sed "s/^/# $f: /" "$tmp/$f"; done
    fi
}

mkdir "$tmp/bin"
tool() {
    { echo '#!/bin/sh'; cat; } > "$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}
# Installed is what the file says; apt-get adds to it.
tool dpkg-query << X
for p; do :; done
grep -q -x "\$p" '$tmp/installed' && echo installed
X
tool apt-get << X
echo "apt-get \$*" >> '$tmp/calls'
case " \$* " in
    *' update '*) touch '$tmp/updated'; exit 0 ;;
esac
[ -n "\${NEEDS_UPDATE:-}" ] && [ ! -e '$tmp/updated' ] && { echo 'E: Unable to locate package'; exit 100; }
[ -n "\${BROKEN:-}" ] && { echo 'E: Broken'; exit 100; }
while [ "\$1" != --no-install-recommends ]; do shift; done
shift
for p; do echo "\$p" >> '$tmp/installed'; done
X
tool id << 'X'
echo "${FAKE_UID:-0}"
X
tool sudo << X
echo "sudo \$*" >> '$tmp/calls'
[ "\$1" = -n ] && shift
[ -n "\${PASSWORD:-}" ] && exit 1
exec "\$@"
X

# need PACKAGE...: a fresh shell that sources lib.sh, without a terminal.
need() {
    : > "$tmp/calls"
    rm -f "$tmp/updated"
    printf 'gcc\nmake\n' > "$tmp/installed"
    # shellcheck disable=SC2016
    PATH="${BIN:-$tmp/bin}:$PATH" root=$tmp sh -c '. "$0"; need_packages "$@"' "$top/scripts/lib.sh" "$@" \
        > "$tmp/out" 2> "$tmp/err" < /dev/null
}
calls() { grep -c "$1" "$tmp/calls"; }

need gcc make && [ ! -s "$tmp/out" ] && [ ! -s "$tmp/err" ] && [ ! -s "$tmp/calls" ]
ok 'all there: silent, nothing is called'
need gcc check make xz-utils && grep -q 'install --no-install-recommends check xz-utils$' "$tmp/calls" &&
    [ "$(cat "$tmp/err")" = 'installing with apt: check xz-utils' ] && [ "$(calls sudo)" -eq 0 ]
ok 'root: only the missing ones, one line about it'
NEEDS_UPDATE=1 need check && [ "$(calls update)" -eq 1 ] && [ "$(calls install)" -eq 2 ]
ok 'the package lists are read anew when the first try fails'
if BROKEN=1 need check; then false; else
    grep -q 'E: Broken' "$tmp/err" && grep -q 'These packages are missing: check$' "$tmp/err"
fi
ok 'apt fails: its words and the packages'
FAKE_UID=1000 need check && grep -q '^sudo -n env .*apt-get .* check$' "$tmp/calls"
ok 'a user who may sudo'
if FAKE_UID=1000 PASSWORD=1 need check xz-utils; then false; else
    grep -q 'sudo wants a password. As root: apt-get install check xz-utils$' "$tmp/err" && [ "$(calls apt-get)" -eq 0 ]
fi
ok 'sudo wants a password and there is no terminal'
mkdir "$tmp/nosudo"
for t in dpkg-query apt-get id; do cp "$tmp/bin/$t" "$tmp/nosudo/$t"; done
if command -v sudo > /dev/null 2>&1; then
    # This machine has one: a PATH of our own folder and the basic tools.
    for t in sh grep sed tail mktemp rm env cat touch; do ln -s "$(command -v $t)" "$tmp/nosudo/$t"; done
    path=$tmp/nosudo
else
    path=$tmp/nosudo:$PATH
fi
printf 'gcc\n' > "$tmp/installed"
: > "$tmp/calls"
# shellcheck disable=SC2016
if FAKE_UID=1000 PATH=$path root=$tmp sh -c '. "$0"; need_packages "$@"' "$top/scripts/lib.sh" check gcc \
    > "$tmp/out" 2> "$tmp/err" < /dev/null; then false; else
    grep -q 'no sudo here. As root: apt-get install check$' "$tmp/err"
fi
ok 'neither root nor sudo: says exactly what to install'
# The first build says what it does and how long that takes; one that has nothing to do is silent.
mkdir "$tmp/tree" "$tmp/tree/m4" && : > "$tmp/tree/configure.ac" && : > "$tmp/tree/m4/dedit-flags.m4" && : > "$tmp/calls"
# shellcheck disable=SC2016 # a script that is written
printf '#!/bin/sh\nprintf "%%s\\n" "#!/bin/sh" "echo all: > Makefile" > "${0%%/*}/configure"\nchmod +x "${0%%/*}/configure"\n' > "$tmp/tree/autogen.sh"
chmod +x "$tmp/tree/autogen.sh"
build() {
    # shellcheck disable=SC2016
    root=$tmp/tree sh -c '. "$0"; build_tree "$@"' "$top/scripts/lib.sh" b "$@" > "$tmp/out" 2> "$tmp/err" < /dev/null
}
build all && grep -q '^first build, in b (log: b/build.log): this takes about [0-9]* minutes' "$tmp/err" && [ "$(grep -c '^[123] of 3: ' "$tmp/err")" -eq 3 ]
ok 'the first build says what it does and how long it takes'
build all && [ ! -s "$tmp/err" ] && [ ! -s "$tmp/out" ]
ok 'a build with nothing to do is silent'
if build no-such-target; then false; else grep -q 'no-such-target' "$tmp/err" && grep -q '^make failed; ' "$tmp/err"; fi
ok 'a build that fails shows the end of its log'
echo "1..$n"
