# SPDX-License-Identifier: Apache-2.0
# Prints C code as FILE:LINE:TEXT with comments and the contents of strings blanked out.
FNR == 1 { in_comment = 0 }
{
    out = ""
    n = length($0)
    for (i = 1; i <= n; i++) {
        c = substr($0, i, 1)
        two = substr($0, i, 2)
        if (in_comment) {
            if (two == "*/") {
                in_comment = 0
                i++
            }
        } else if (two == "/*") {
            in_comment = 1
            out = out " "
            i++
        } else if (two == "//") {
            break
        } else if ((c == "\"" && $0 !~ /^[ \t]*#[ \t]*include/) || c == "'") {
            for (i++; i <= n && substr($0, i, 1) != c; i++)
                if (substr($0, i, 1) == "\\")
                    i++
            out = out c c
        } else
            out = out c
    }
    print FILENAME ":" FNR ":" out
}
