# SPDX-License-Identifier: Apache-2.0
# DEDIT_FLAGS(VAR, FLAGS...): appends to VAR those of the blank-separated FLAGS that the compiler
# accepts without a word.  The whole list is tried at once first, so the usual case costs one compile.
AC_DEFUN([_DEDIT_TRY_FLAGS], [
  dedit_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror $1"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <stddef.h>
]], [[]])], [$2], [$3])
  CFLAGS=$dedit_save_CFLAGS
])
AC_DEFUN([DEDIT_FLAGS], [
  AC_MSG_CHECKING([compiler flags for $1])
  dedit_all="$2"
  dedit_refused=
  _DEDIT_TRY_FLAGS([$dedit_all], [AS_VAR_APPEND([$1], [" $dedit_all"])], [
    for dedit_flag in $dedit_all; do
      _DEDIT_TRY_FLAGS([$dedit_flag], [AS_VAR_APPEND([$1], [" $dedit_flag"])],
        [AS_VAR_APPEND([dedit_refused], [" $dedit_flag"])])
    done])
  AS_IF([test -n "$dedit_refused"], [AC_MSG_RESULT([all but$dedit_refused])], [AC_MSG_RESULT([all])])
])

# DEDIT_LINK_FLAGS(VAR, FLAGS...): the same for the linker.
AC_DEFUN([DEDIT_LINK_FLAGS], [
  for dedit_flag in $2; do
    AC_MSG_CHECKING([whether the linker takes $dedit_flag])
    dedit_save_LDFLAGS=$LDFLAGS
    dedit_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -fPIC -Werror"
    LDFLAGS="$LDFLAGS $dedit_flag"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])],
      [AC_MSG_RESULT([yes]); AS_VAR_APPEND([$1], [" $dedit_flag"])], [AC_MSG_RESULT([no])])
    LDFLAGS=$dedit_save_LDFLAGS
    CFLAGS=$dedit_save_CFLAGS
  done
])

# DEDIT_TIER(NAME, FLAGS, INTRINSIC TEST): sets NAME_CFLAGS, the conditional BUILD_NAME and the macro
# DEDIT_TIER_NAME when the compiler can build that tier of the kernels.
AC_DEFUN([DEDIT_TIER], [
  AC_MSG_CHECKING([whether to build the $1 kernels])
  dedit_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS $2"
  AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#ifndef __x86_64__
#error not x86-64
#endif
#include <immintrin.h>
]$3])], [dedit_tier_$1=yes], [dedit_tier_$1=no])
  CFLAGS=$dedit_save_CFLAGS
  AC_MSG_RESULT([$dedit_tier_$1])
  AS_IF([test "$dedit_tier_$1" = yes],
    [AC_DEFINE([DEDIT_TIER_$1], [1], [the $1 tier of the kernels is built])])
  AM_CONDITIONAL([BUILD_$1], [test "$dedit_tier_$1" = yes])
  AC_SUBST([$1_CFLAGS], ["$2"])
])
