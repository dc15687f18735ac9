#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Functions that the project does not call, and why.
# shellcheck source=tests/lint/lint.sh
. "${top_srcdir:-.}/tests/lint/lint.sh"

libraries='base proto kernels engine client'
all="$libraries train daemon bench"

# calls "NAME|NAME" "FOLDER...": calls of these functions (not members of that name, not our own
# prefixed names).
calls() {
    names=$1
    for folder in $2; do
        # Experiments in bench/lab are not part of the product.
        sources=$(files '*.[ch]' "$folder" | grep -v '/bench/lab/')
        [ -z "$sources" ] && continue
        # shellcheck disable=SC2086
        awk -f "$lint/code.awk" $sources |
            grep -E "(^|[^A-Za-z0-9_.>])($names)[[:space:]]*\(" | sed "s|^$root/||"
    done
}
no_exit() {
    # The command-line programs end by returning from main, too.
    calls 'exit|_exit|_Exit|quick_exit|abort|assert|__builtin_trap|__assert_fail' "$all" |
        grep -v 'static_assert'
}
no_printing() { calls 'printf|vprintf|puts|putchar|perror|fprintf|vfprintf|fputs|fputc|putc|fwrite|dprintf|psignal' "$libraries" |
    grep -v '^client/cli' | grep -v '^base/file'; }
no_locale() {
    calls 'strtod|strtof|strtold|atof|atoi|atol|atoll|setlocale' "$all"
    calls 'sscanf|fscanf|scanf' "$libraries"
}
no_ctype() { calls 'isalpha|isdigit|isalnum|isspace|isupper|islower|ispunct|isxdigit|isprint|tolower|toupper|strcasecmp|strncasecmp' "$libraries"; }
no_unbounded() { calls 'gets|strcpy|strcat|sprintf|vsprintf|stpcpy|strtok|alloca|tmpnam|mktemp' "$all"; }
# base/line.h tells the end of a file from what could not be read.
no_getline() { calls 'getline|getdelim' "$all" | grep -v '^base/line\.c:'; }
# What getline(), scandir() and open_memstream() give is freed by free().
no_malloc() {
    calls 'malloc|calloc|realloc|reallocarray|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign|memalign|valloc' "$all" |
        grep -v '^base/alloc\.c:'
    calls 'free' "$libraries" | grep -v -E '^(base/alloc\.c:|base/out_file\.c:|client/cli|engine/draft_script\.c:)'
}
# fma and sqrt are instructions (intrinsics, kernels/fma.h); everything else is our own.
no_libm() {
    f='acos|acosh|asin|asinh|atan|atan2|atanh|cbrt|ceil|cos|cosh|erf|erfc|exp|exp2|exp10|expm1|floor|fma|fmax|fmin|fmod|hypot|lgamma|log|log10|log1p|log2|lrint|lround|nearbyint|pow|remainder|rint|round|roundeven|sin|sincos|sinh|sqrt|tan|tanh|tgamma|trunc'
    calls "($f)[fl]?" kernels
}
no_libm_in_engine() { calls '(exp|exp2|expm1|log|log1p|log2|log10|sin|cos|sincos|tanh|pow)f?' engine; }

check 'no exit, abort or assert on input' no_exit
check 'libraries do not print' no_printing
check 'numbers are parsed by base/parse.h' no_locale
check 'no character classes of the locale' no_ctype
check 'no unbounded copies' no_unbounded
check 'lines are read by base/line.h' no_getline
check 'allocation goes through base/alloc.h' no_malloc
check 'no libm calls in kernels' no_libm
check 'no transcendental libm calls in the engine' no_libm_in_engine

# What the compiler made of it counts as well: undefined symbols that only libm has.
libm_symbols() {
    libm=$(${CC:-cc} -print-file-name=libm.so.6)
    libc=$(${CC:-cc} -print-file-name=libc.so.6)
    nm -D --defined-only "$libm" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u > "$bad/libm"
    nm -D --defined-only "$libc" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u > "$bad/libc"
    [ -s "$bad/libm" ] || echo "no symbols in $libm"
    nm -u "$@" 2> /dev/null | awk '{ print $NF }' | sort -u > "$bad/undefined"
    comm -12 "$bad/libm" "$bad/undefined" | comm -23 - "$bad/libc"
}

bad_tree
if command -v nm > /dev/null 2>&1; then
    # shellcheck disable=SC2046
    check 'kernel archives need nothing of libm' libm_symbols $(find "${top_builddir:-.}" -maxdepth 1 -name 'libdedit-kernels*.a')
    echo 'double expl_(double); double sin(double); double f(double x) { return sin(x); }' > "$bad/x.c"
    ${CC:-cc} -c -o "$bad/x.o" "$bad/x.c"
    check_finds 'a libm symbol is found' 1 libm_symbols "$bad/x.o"
else
    skip 'kernel archives need nothing of libm' 'nm is missing (Debian package: binutils)'
fi

mkdir -p "$bad/base" "$bad/kernels" "$bad/engine"
cat > "$bad/base/a.c" <<'X'
/* exit(1); printf("x"); */
void f(void) { s->free(p); my_free(p); mem_free(p); snprintf(b, 3, "exit(1) malloc(3)"); }
void g(void) { exit (1); }
void h(void) { fprintf(stderr, "x"); free(p); atof("1"); x = isdigit(c); strcpy(a, b); getline(&a, &n, f); }
X
echo 'float f(float x) { return expf(x) + dk_expf(x) + sqrt(x); }' > "$bad/kernels/k.c"
check_finds 'exit is found, in code only' 1 no_exit
check_finds 'printing is found' 1 no_printing
check_finds 'atof is found' 1 no_locale
check_finds 'getline is found' 1 no_getline
check_finds 'isdigit is found' 1 no_ctype
check_finds 'strcpy is found' 1 no_unbounded
check_finds 'free is found, members and prefixed names are not' 1 no_malloc
check_finds 'libm is found' 1 no_libm
finish
