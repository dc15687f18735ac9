# shellcheck shell=sh disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Shared by quickstart and scripts/test: installing what is missing, and building.  Everything here
# is silent about what is already there.  Set: $root, the top of the source tree.

# What ./configure, make and models/fetch need.
build_packages='gcc libc6-dev make autoconf automake libtool pkg-config libjansson-dev libpcre2-dev
    libutf8proc-dev uthash-dev libxxhash-dev libinih-dev liburing-dev libsystemd-dev libedit-dev
    libprotobuf-c-dev protobuf-c-compiler
    check xz-utils ca-certificates python3 python3-pip'
# What the tests use beyond that.
test_packages='locales shellcheck binutils g++ mandoc protobuf-compiler python3-protobuf systemd-container
    systemd-sysv libpam-systemd dbus-user-session'

# About 270 files; most of the time goes into the kernels, once for each instruction set.
build_time='this takes about 5 minutes on two cores'

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

missing_packages() {
    for package in "$@"; do
        case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) in
            installed) ;;
            *) printf '%s ' "$package" ;;
        esac
    done
}

# need_packages NAME...: installs the Debian packages that are not there.  On a system without dpkg
# it leaves the verdict to ./configure.
need_packages() {
    command -v dpkg-query > /dev/null 2>&1 || return 0
    missing=$(missing_packages "$@")
    missing=${missing% }
    [ -n "$missing" ] || return 0
    command -v apt-get > /dev/null 2>&1 || die "These packages are missing: $missing"
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null 2>&1 ||
            die "These packages are missing, and there is no sudo here. As root: apt-get install $missing"
        # Without a terminal nobody can type a password.
        if sudo -n true 2> /dev/null; then
            as_root='sudo -n'
        elif [ -t 0 ] && [ -t 2 ]; then
            as_root=sudo
        else
            die "These packages are missing, and sudo wants a password. As root: apt-get install $missing"
        fi
    fi
    say "installing with apt: $missing"
    log=$(mktemp) || die "cannot create a temporary file"
    # The lists of a fresh system may be empty or old: they are read anew when that is what fails.
    # shellcheck disable=SC2086 # one word a package
    if ! apt_install $missing > "$log" 2>&1 && ! { apt_update && apt_install $missing; } > "$log" 2>&1; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        die "apt-get failed. These packages are missing: $missing"
    fi
    rm -f "$log"
}
apt_update() { $as_root apt-get -q -o DPkg::Lock::Timeout=120 update; }
apt_install() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 \
        install --no-install-recommends "$@"
}

# build_tree FOLDER TARGETS CONFIGURE-OPTIONS...: configures when the options are not those of last
# time, then makes.  The output goes to FOLDER/build.log; its end is shown when it fails.
#
# The first time takes minutes: what is being done is said, and on a terminal how far it is.
build_tree() {
    tree=$root/$1
    targets=$2
    shift 2
    mkdir -p "$tree" 2> /dev/null
    [ -w "$tree" ] || die "$tree is not writable: it may belong to another user; remove it"
    log=$tree/build.log
    options="CC=${CC:-} CFLAGS=${CFLAGS:-} $*"
    # Make's own rules follow changes of the lists of files, but not a new tool in configure.ac.
    if [ ! -x "$root/configure" ] ||
        [ -n "$(find "$root/configure.ac" "$root/m4/dedit-flags.m4" -newer "$root/configure")" ]; then
        say "first build, in ${tree#"$root/"} (log: ${log#"$root/"}): $build_time"
        say '1 of 3: autogen.sh makes configure'
        "$root/autogen.sh" > "$log" 2>&1 || build_failed autogen.sh
    elif [ ! -f "$tree/Makefile" ]; then
        say "first build, in ${tree#"$root/"} (log: ${log#"$root/"}): $build_time"
    fi
    if [ ! -f "$tree/Makefile" ] || [ "$(cat "$tree/options" 2> /dev/null)" != "$options" ]; then
        # An interrupted configure must not look finished.
        rm -f "$tree/Makefile"
        say '2 of 3: configure looks at the machine'
        (cd "$tree" && "$root/configure" "$@") > "$log" 2>&1 || build_failed configure
        printf '%s\n' "$options" > "$tree/options"
        say '3 of 3: make compiles'
    fi
    # make stays in the foreground, so that Ctrl-C reaches it; the counter ends with it, or with this shell.
    counter=
    if [ -t 2 ]; then
        : > "$log"
        count_files "$log" &
        counter=$!
    fi
    # shellcheck disable=SC2086 # one word a target
    make -C "$tree" -j"$(nproc 2> /dev/null || echo 2)" $targets > "$log" 2>&1
    made=$?
    if [ -n "$counter" ]; then
        kill "$counter" 2> /dev/null
        wait "$counter" 2> /dev/null
        printf '\r\033[K' >&2
    fi
    [ $made -eq 0 ] || build_failed make
}
count_files() {
    while kill -0 $$ 2> /dev/null; do
        sleep 1
        count=$(grep -c '^  CC ' "$1")
        [ "$count" -eq 0 ] || printf '\r%s files compiled ' "$count" >&2
    done
}
build_failed() {
    tail -n 30 "$log" >&2
    die "$1 failed; the whole output is in $log"
}
