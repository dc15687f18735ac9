#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `make install` gives a user of the library: header, shared and static library, dedit.pc, manual pages.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
build=$(cd "${top_builddir:-.}" && pwd)
root=$scratch/root

install_it() { make -C "$build" install DESTDIR="$root" prefix=/usr; }
ok 'make install into a folder' install_it
lib=$(dirname "$(find "$root" -name 'libdedit.so.0' | head -n 1)")
only_header() {
    [ "$(cd "$root/usr/include" && find . -type f)" = ./dedit.h ] && cmp "$root/usr/include/dedit.h" "$top/client/dedit.h"
}
ok 'dedit.h is the only header' only_header
# Every function of the header, and nothing else, is exported, with a version.
functions() {
    tr '\n' ' ' < "$top/client/dedit.h" | grep -o 'DEDIT_API [^;(]*(' | sed -n 's/.*[ *]\(dedit_[a-z_]*\)($/\1/p' | sort -u
}
symbols() {
    functions > "$scratch/header"
    [ "$(wc -l < "$scratch/header")" -gt 30 ] || return 1
    nm -D --defined-only "$lib/libdedit.so.0" > "$scratch/nm" || return 1
    sed -n 's/.* T \(dedit_[a-z_]*\)@@DEDIT_0$/\1/p' "$scratch/nm" | sort > "$scratch/exported"
    # The version's own name is a symbol, too.
    grep -v -e '@@DEDIT_0$' -e ' A DEDIT_0' "$scratch/nm" && return 1
    diff "$scratch/header" "$scratch/exported"
}
ok 'shared library: exports what the header declares' symbols
soname() { readelf -d "$lib/libdedit.so.0" | grep -q 'soname: \[libdedit.so.0\]'; }
ok 'shared library: soname' soname
needed() {
    readelf -d "$lib/libdedit.so.0" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' | grep -v -E '^lib(asan|ubsan|tsan)\.so' | sort > "$scratch/needed"
    printf 'libc.so.6\nlibprotobuf-c.so.1\n' | diff - "$scratch/needed"
}
ok 'shared library: needs libc and protobuf-c only' needed
# No printing, no signals, no threads, no end of the program: it does not even know how.
manners() {
    nm -D -u "$lib/libdedit.so.0" | sed 's/.* U //; s/@.*//' > "$scratch/undefined"
    case $SANITIZE in ?*) return 0 ;; esac
    grep -x -E '_?exit|_Exit|abort|__assert_fail|raise|kill|signal|sigaction|pthread_create|fork|(v?f?|__v?f?)printf(_chk)?|puts|putchar|fwrite|f?putc|perror|std(out|err)|setenv|putenv|srand|setlocale' "$scratch/undefined" && return 1
    grep -q -x recvmsg "$scratch/undefined"
}
ok 'shared library: does not print, end the program, touch signals or start threads' manners
static_symbols() {
    nm -g --defined-only "$lib/libdedit.a" | sed -n 's/^[0-9a-f]* [A-Z] //p' | sort > "$scratch/static"
    diff "$scratch/header" "$scratch/static"
}
ok 'static library: the same names are global and no other' static_symbols

pc() {
    PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH="$lib/pkgconfig:$(pkg-config --variable pc_path pkg-config)" \
        pkg-config "$@" dedit
}
# The libraries of this system are no part of the sysroot.
flags() { pc "$@" | sed "s|-I$root/usr/local/include||; s|-L$root/usr/local/lib||"; }
pc_fields() {
    version=$("$build/client/dedit-client" --version | cut -d' ' -f2)
    [ "$(pc --modversion)" = "$version" ] && pc --libs | grep -q -e -ldedit && pc --static --libs | grep -q -e -lprotobuf-c &&
        ! pc --libs | grep -q -e -lprotobuf-c
}
ok 'dedit.pc: version, private libraries' pc_fields
shared() {
    # shellcheck disable=SC2046,SC2086 # lists of words
    ${CC:-cc} $SANITIZE -o "$scratch/shared" "$top/docs/examples/one.c" -I"$root/usr/include" -L"$lib" $(flags --cflags --libs) &&
        LD_LIBRARY_PATH=$lib "$scratch/shared" 2> "$scratch/err"
    grep -q '^closed: .*is dedit-d running' "$scratch/err"
}
export DEDIT_SOCKET="$scratch/nobody"
ok 'a program with the flags of pkg-config' shared
static() {
    # Its own names stay free for the program: a function of the library's inner layers is defined here again.
    printf 'int mem_alloc;\nint error_set(void);\nint error_set(void) { return mem_alloc; }\n' > "$scratch/own.c"
    # shellcheck disable=SC2046,SC2086 # lists of words
    ${CC:-cc} $SANITIZE -o "$scratch/static" "$top/docs/examples/one.c" "$scratch/own.c" -I"$root/usr/include" "$lib/libdedit.a" \
        $(pc --static --libs | tr ' ' '\n' | grep -v -e '^-L' -e '^-ldedit$') || return 1
    "$scratch/static" 2> "$scratch/err"
    grep -q '^closed: .*is dedit-d running' "$scratch/err"
}
ok 'a program with the static library, whose inner names are free' static
programs() {
    for p in bin/dedit-client sbin/dedit-d bin/dedit-bench; do
        [ -x "$root/usr/$p" ] || { echo "$p is missing"; return 1; }
    done
}
ok 'programs' programs
manuals() {
    for page in "$top"/man/*.[1-8]; do
        n=${page##*.}
        found=$(find "$root/usr" -path "*/man$n/${page##*/}")
        [ -n "$found" ] || { echo "${page##*/} is missing"; return 1; }
    done
}
ok 'manual pages' manuals
# As configured, and as the program does it; nothing else is changed.
etc=$(sed -n 's/^sysconfdir = //p' "$build/Makefile" | sed "s|\${prefix}|$(sed -n 's/^prefix = //p' "$build/Makefile")|")
conf_place() {
    "$build/daemon/dedit-d" --help | grep -q -F "($etc/dedit/dedit.conf and" || return 1
    for page in man8/dedit-d.8 man5/dedit.conf.5; do
        sed "s|/etc/dedit|$etc/dedit|g" "$top/man/${page##*/}" | cmp - "$(find "$root/usr" -path "*/$page")" || return 1
    done
}
ok 'manual pages name the configuration where it is' conf_place
examples() { for e in "$top"/docs/examples/*; do find "$root" -path "*/examples/${e##*/}" | grep -q . || return 1; done; }
ok 'examples' examples
finish
