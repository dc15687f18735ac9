#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs/examples and the block of libdedit(3): compiled as a user would, run against a private daemon, their
# answers compared with the engine's own.
# shellcheck source=tests/integration/lib.sh
. "${top_srcdir:-.}/tests/integration/lib.sh"
build=$(cd "${top_builddir:-.}" && pwd)
model=$golden/models/a_llama_tied
export DEDIT_SOCKET="$scratch/s" LD_LIBRARY_PATH="$build/client/.libs"

: > "$scratch/conf"
"$build/daemon/dedit-d" --socket "$scratch/s" --config "$scratch/conf" --threads 1 --model "$model" 2> "$scratch/log" &
pid=$!
trap 'kill $pid 2> /dev/null; rm -rf "$scratch"' EXIT
ready() {
    tries=0
    until "$build/client/dedit-client" ping; do
        tries=$((tries + 1))
        if [ $tries -ge 400 ] || ! kill -0 $pid 2> /dev/null; then return 1; fi
        sleep 0.05
    done
}
ok 'the daemon is ready' ready

# compile PROGRAM SOURCE OPTION...: SANITIZE and CC come from make.
compile() {
    program=$1
    source=$2
    shift 2
    # shellcheck disable=SC2086 # lists of words
    ${CC:-cc} $SANITIZE -Wall -Wextra -Werror -I"$top/client" -o "$scratch/$program" "$source" "$@" \
        -L"$build/client/.libs" -ldedit
}
for example in one many chat events cancel; do
    ok "$example.c compiles" compile $example "$top/docs/examples/$example.c" -std=gnu11 -pedantic
done
cxx() {
    for standard in c++11 c++17; do
        compile onecpp "$top/docs/examples/one.cpp" -std=$standard -pedantic -lstdc++ || return 1
    done
}
ok 'one.cpp compiles as C++11 and as C++17' cxx

engine() { "$bench" generate --model "$model" --raw --temperature 0 --max-tokens 32 "$1" 2> /dev/null; }
plain() {
    engine 'Hello there' > "$scratch/want" && "$scratch/one" 'Hello there' > "$scratch/got" &&
        cmp "$scratch/want" "$scratch/got" && [ "$(wc -c < "$scratch/got")" -gt 8 ]
}
ok 'one.c: the text of the engine' plain
cplusplus() { "$scratch/onecpp" 'Hello there' > "$scratch/got" && cmp "$scratch/want" "$scratch/got"; }
ok 'one.cpp: the same' cplusplus
# The interpreter is not sanitized: the library's run-time comes first.
preload=
case $SANITIZE in
    *address*) names='libasan.so libclang_rt.asan-x86_64.so libclang_rt.asan-aarch64.so' ;;
    *thread*) names='libtsan.so libclang_rt.tsan-x86_64.so libclang_rt.tsan-aarch64.so' ;;
    *) names= ;;
esac
for name in $names; do
    found=$(${CC:-cc} -print-file-name="$name")
    [ ! -f "$found" ] || preload=$found
done
with_ctypes() {
    ASAN_OPTIONS=detect_leaks=0:$ASAN_OPTIONS LD_PRELOAD=$preload python3 "$top/docs/examples/one.py" 'Hello there' \
        > "$scratch/got" && cmp "$scratch/want" "$scratch/got"
}
# An interpreter that is not built for it dies of gcc's thread sanitizer before it has read a line.
if [ -z "$preload" ] || ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$preload python3 -c '' 2> /dev/null; then
    ok 'one.py: the same through ctypes' with_ctypes
fi
# Its structures against the header's, field by field.
layout() {
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$top/docs/examples python3 - > "$scratch/layout.c" << 'X' || return 1
import one
print('#include <dedit.h>\n#include <stddef.h>\n')
for name, c in (("dedit_error", one.Error), ("dedit_options", one.Options), ("dedit_usage", one.Usage),
                ("dedit_event", one.Event)):
    print("_Static_assert(sizeof(struct %s) == %d, \"size\");" % (name, one.sizeof(c)))
    for f, _ in c._fields_:
        print("_Static_assert(offsetof(struct %s, %s) == %d, \"%s\");" % (name, f, getattr(c, f).offset, f))
print("int main(void) { return 0; }")
X
    [ "$(grep -c offsetof "$scratch/layout.c")" -gt 70 ] && compile layout "$scratch/layout.c" -std=c11
}
ok 'one.py: structures as in the header' layout
many() {
    "$scratch/many" > "$scratch/got" && [ "$(wc -l < "$scratch/got")" -eq 16 ] || return 1
    # Each has its own seed: the same again.
    "$scratch/many" > "$scratch/again" && cmp "$scratch/got" "$scratch/again" &&
        grep -q '^15: [1-9][0-9]* tokens$' "$scratch/got"
}
ok 'many.c: sixteen requests in one thread, repeatable' many
chat() { printf 'first\nsecond\n' | "$scratch/chat" chatml 6 > "$scratch/got" && [ "$(wc -l < "$scratch/got")" -ge 2 ]; }
ok 'chat.c: two turns' chat
chat_error() {
    if printf 'x\n' | "$scratch/chat" nonsense 2> "$scratch/err"; then return 1; fi
    grep -q '^[a-z-]*: .*nonsense' "$scratch/err"
}
ok 'chat.c: a chat format that is none is named' chat_error
events() {
    "$scratch/events" 'Hello there' > "$scratch/got" || return 1
    awk -F '\t' '
        $1 == "token" {
            tokens++
            n = split($4, alternatives, ",")
            split(alternatives[1], best, ":")
            if (best[1] != $2 || best[2] != $3 || n < 3 || $3 > 0) bad = 1
        }
        $1 == "round" { rounds++ }
        $1 == "finished" { ends++; if ($2 != "length" || $6 != "seed 42") bad = 1 }
        END { exit !(tokens == 8 && ends == 1 && !bad) }
    ' "$scratch/got"
}
ok 'events.c: log-probabilities, alternatives, usage' events
cancel() {
    "$scratch/cancel" 20 > "$scratch/got" && grep -q '^cancelled after [0-9]* tokens$' "$scratch/got" &&
        n=$(tr -dc 0-9 < "$scratch/got") && [ "$n" -ge 20 ] && [ "$n" -lt 400 ]
}
ok 'cancel.c: stopped after some tokens' cancel
manual() {
    {
        printf '#include <dedit.h>\n#include <stdio.h>\n'
        printf 'static int complain(const struct dedit_error *e) { fputs(e->msg, stderr); return 1; }\n'
        echo 'int main(void) {'
        sed -n '/^\.Bd -literal/,/^\.Ed/{/^\./d;p}' "$top/man/libdedit.3"
        echo 'return 0; }'
    } > "$scratch/manual.c"
    compile manual "$scratch/manual.c" -std=gnu11 && "$scratch/manual" > "$scratch/got" && [ -s "$scratch/got" ]
}
ok 'libdedit(3): its example' manual
header() {
    {
        printf '#include <dedit.h>\n#include <stdio.h>\nint main(void) {\n'
        sed -n '/^ \*       struct dedit_client \*c;/,/^ \*       dedit_client_free/{s/^ \* *//;s/) \.\.\.$/) return 1;/;p}' "$top/client/dedit.h"
        echo 'return 0; }'
    } > "$scratch/header.c"
    compile header "$scratch/header.c" -std=gnu11 && "$scratch/header" > "$scratch/got" && [ -s "$scratch/got" ]
}
ok 'dedit.h: its example' header
nobody() {
    for example in one many events cancel; do
        if DEDIT_SOCKET=$scratch/nobody "$scratch/$example" 2> "$scratch/err"; then return 1; fi
        grep -q '^closed: .*is dedit-d running' "$scratch/err" || return 1
    done
}
ok 'without a daemon: a word about it' nobody
stop() { kill $pid && wait $pid; }
ok 'the daemon stops without an error' stop
finish
