/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this CPU and this kernel can run: CPUID, XCR0 and the request for tile data, asked once per
 * process, and the choice of a tier.
 */
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/internal.h"

#if DK_X86
#include <cpuid.h>

#define ARCH_REQ_XCOMP_PERM_ 0x1023
#define XFEATURE_XTILEDATA_  18

static uint64_t xgetbv0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void detect(struct dk_cpu *c)
{
    uint32_t a, b, cx, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &cx, &d))
        return;
    bool osxsave = cx >> 27 & 1, fma = cx >> 12 & 1, f16c = cx >> 29 & 1, avx = cx >> 28 & 1;
    if (!osxsave || !avx || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return;
    uint64_t xcr0 = xgetbv0();
    /* XMM and YMM; then opmask and the two halves of the ZMM file; then tile configuration and data. */
    bool os_ymm = (xcr0 & 0x6) == 0x6, os_zmm = (xcr0 & 0xe6) == 0xe6;
    bool os_tile = (xcr0 & 0x60000) == 0x60000;
    c->avx2 = os_ymm && fma && f16c && (b7 >> 5 & 1);
    c->avx512 = c->avx2 && os_zmm && (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) &&
                (b7 >> 31 & 1) && (c7 >> 11 & 1);
    uint32_t a71 = 0; /* leaf 7, 1: AVX512_BF16, which rounds beside the tiles */
    (void)__get_cpuid_count(7, 1, &a71, &b, &cx, &d);
    bool amx = c->avx512 && os_tile && (d7 >> 22 & 1) && (d7 >> 24 & 1) && (d7 >> 25 & 1) &&
               (a71 >> 5 & 1);
    /* The permission holds for the whole process, threads that exist already included. */
    c->amx = amx && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}
#else
static void detect(struct dk_cpu *c)
{
    (void)c;
}
#endif

static struct dk_cpu cpu;
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

static void detect_once(void)
{
    detect(&cpu);
}

const struct dk_cpu *dk_cpu(void)
{
    pthread_once(&cpu_once, detect_once);
    return &cpu;
}

static const char *const tier_names[DK_TIER_COUNT] = {
    [DK_TIER_C] = "c",
    [DK_TIER_AVX2] = "avx2",
    [DK_TIER_AVX512] = "avx512",
    [DK_TIER_AMX] = "amx",
};

const char *dk_tier_name(enum dk_tier t)
{
    return (unsigned)t < DK_TIER_COUNT ? tier_names[t] : "unknown";
}

bool dk_tier_parse(const char *name, enum dk_tier *ret)
{
    for (unsigned t = 0; t < DK_TIER_COUNT; t++) {
        if (strcmp(name, tier_names[t]) == 0) {
            *ret = (enum dk_tier)t;
            return true;
        }
    }
    return false;
}

enum dk_tier dk_tier_best(void)
{
    for (unsigned t = DK_TIER_COUNT; t-- > 1;)
        if (dk_ops((enum dk_tier)t))
            return (enum dk_tier)t;
    return DK_TIER_C;
}

int dk_tier_choose(const char *forced, enum dk_tier *ret, struct error *err)
{
    enum dk_tier best = dk_tier_best(), t;
    if (!forced || !*forced) {
        *ret = best;
        return 0;
    }
    if (!dk_tier_parse(forced, &t))
        return ERR(err, INVALID, "'%s' is not one of c, avx2, avx512, amx", forced);
    if (!dk_ops(t))
        return ERR(err, UNSUPPORTED, "this machine cannot run the tier '%s'; its best is '%s'",
                   forced, dk_tier_name(best));
    *ret = t;
    return 0;
}
