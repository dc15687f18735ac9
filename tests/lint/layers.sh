#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Which folder may include which: the table of docs/architecture.md.
# shellcheck source=tests/lint/lint.sh
. "${top_srcdir:-.}/tests/lint/lint.sh"

# layer FOLDER "ALLOWED PROJECT FOLDERS" "ALLOWED LIBRARY HEADERS" [GREP OPTIONS]: prints forbidden includes.
layer() {
    # shellcheck disable=SC2086 # a list of options
    sources=$({ files '*.[ch]' "$1"; files '*.cu' "$1"; files '*.cuh' "$1"; } | grep -E ${4:-.})
    [ -z "$sources" ] && return
    # shellcheck disable=SC2086
    awk -f "$lint/code.awk" $sources | awk -v folders=" $1 $2 " -v libs=" $3 " -v root="$root/" '
        BEGIN {
            # Headers of libraries that are not libc; what is not named here is libc or the kernel.
            split("jansson.h pcre2.h utf8proc.h uthash.h utlist.h utarray.h xxhash.h ini.h check.h " \
                  "liburing.h zlib.h cuda_runtime.h cublas_v2.h cublasLt.h math.h", l, " ")
            for (i in l) known[l[i]] = 1
        }
        match($0, /:[ \t]*#[ \t]*include[ \t]*"[^"]*"/) {
            name = $0
            sub(/^[^"]*"/, "", name)
            sub(/".*/, "", name)
            folder = name
            if (name == "config.h") next
            if (!sub(/\/.*/, "", folder) || name ~ /\.\./ || !index(folders, " " folder " ")) print substr($0, length(root) + 1)
            next
        }
        match($0, /:[ \t]*#[ \t]*include[ \t]*</) {
            name = $0
            sub(/^[^<]*</, "", name)
            sub(/>.*/, "", name)
            if ((name in known || name ~ /^(systemd|protobuf-c)\//) && !index(libs, " " name " "))
                print substr($0, length(root) + 1)
        }'
}

check 'base includes libc only' layer base '' 'xxhash.h'
check 'proto includes base' layer proto 'base' 'protobuf-c/protobuf-c.h'
check 'kernels include base' layer kernels 'base' 'cuda_runtime.h cublas_v2.h cublasLt.h'
check 'engine includes base, kernels' layer engine 'base kernels' \
    'jansson.h pcre2.h utf8proc.h uthash.h utlist.h xxhash.h math.h'
check 'train includes base, kernels, engine' layer train 'base kernels engine' 'jansson.h uthash.h math.h'
check 'daemon includes all but client and train' layer daemon 'base proto kernels engine' \
    'jansson.h uthash.h utlist.h ini.h liburing.h systemd/sd-daemon.h systemd/sd-journal.h protobuf-c/protobuf-c.h math.h'
check 'the client library includes base, proto' layer client 'base proto' 'uthash.h protobuf-c/protobuf-c.h' '-v /cli[-.]'
check 'the client program includes base, proto, engine' layer client 'base proto engine' 'jansson.h uthash.h' '/cli[-.]'
check 'bench includes base, client, engine, kernels, proto' layer bench 'base client engine kernels proto' \
    'jansson.h math.h'

bad_tree
mkdir -p "$bad/base" "$bad/kernels"
cat > "$bad/base/a.c" <<'X'
#include "base/a.h"
#include "engine/engine.h"
#include "a.h"
# include  <jansson.h>
#include <stdio.h>
/* #include "engine/engine.h" */
#include "base/../engine/x.h"
X
check_finds 'upward, relative and foreign includes are found' 4 layer base '' 'xxhash.h'
finish
