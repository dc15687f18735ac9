#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One step of drafter training in PyTorch, for comparison with `dedit-train fit`: the same shapes,
the same batch, the same number of threads, random values.

usage: torch-train.py [--threads N] [--steps N] [--p1] [--bf16]
Needs torch.  Prints seconds a step (median) and context tokens a second.

The step: context features -> K/V of both layers, a pass over masked blocks, its loss and gradients, a
pass over edited blocks likewise, clipping, AdamW.  Attention is split into the context, shared by the
blocks of a sequence, and the own block, as in our program; torch's own attention with a mask over all
keys is slower (try --stock).
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--threads", type=int, default=2)
p.add_argument("--steps", type=int, default=5)
p.add_argument("--batch", type=int, default=8)
p.add_argument("--anchors", type=int, default=32)
p.add_argument("--length", type=int, default=295, help="tokens of a sequence")
p.add_argument("--prompt", type=int, default=70)
p.add_argument("--window", type=int, default=8)
p.add_argument("--vocab", type=int, default=8192)
p.add_argument("--p1", action="store_true", help="no edit pass")
p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
p.add_argument("--stock", action="store_true", help="scaled_dot_product_attention with a mask")
a = p.parse_args()
torch.manual_seed(0)
torch.set_num_threads(a.threads)
H, FFN, HEADS, KV, HD, L, TAPS, W = 576, 1536, 9, 3, 64, 2, 5, a.window
G = HEADS // KV


def matrix(out, inp):
    return torch.nn.Parameter(torch.randn(out, inp) / inp**0.5)


def gain(n):
    return torch.nn.Parameter(torch.ones(n))


fc, hidden_norm, norm = matrix(H, TAPS * H), gain(H), gain(H)
layers = [dict(n1=gain(H), q=matrix(HEADS * HD, H), k=matrix(KV * HD, H), v=matrix(KV * HD, H),
               o=matrix(H, HEADS * HD), qn=gain(HD), kn=gain(HD), n2=gain(H), gate=matrix(FFN, H),
               up=matrix(FFN, H), down=matrix(H, FFN)) for _ in range(L)]
params = [fc, hidden_norm, norm] + [t for l in layers for t in l.values()]
embed, head = torch.randn(49152, H), torch.randn(a.vocab, H) / H**0.5
optimiser = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0, fused=True)

inv = 1e5 ** (-torch.arange(0, HD, 2).float() / HD)
angles = torch.arange(a.length + W).float()[:, None] * inv
cos, sin = torch.cat([angles.cos()] * 2, 1), torch.cat([angles.sin()] * 2, 1)


def rms(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def rope(x, pos):
    half = torch.cat([-x[..., HD // 2:], x[..., :HD // 2]], -1)
    return x * cos[pos][..., None, :] + half * sin[pos][..., None, :]


def attention(q, k, v, kc, vc, anchors):
    """q: [blocks, W, heads, hd]; k, v: [blocks, W, kv, hd]; kc, vc: [ctx, kv, hd], one sequence."""
    n, c = q.shape[0], kc.shape[0]
    hidden = torch.arange(c)[None, :] >= anchors[:, None]
    if a.stock:
        keys = torch.cat([kc[None].expand(n, -1, -1, -1), k], 1).transpose(1, 2)
        values = torch.cat([vc[None].expand(n, -1, -1, -1), v], 1).transpose(1, 2)
        mask = torch.cat([~hidden, torch.ones(n, W, dtype=torch.bool)], 1)[:, None, None, :]
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask,
                                             enable_gqa=True)
        return out.transpose(1, 2).reshape(n, W, HEADS * HD)
    q = q.reshape(n * W, KV, G, HD).permute(1, 0, 2, 3).reshape(KV, n * W * G, HD) * HD**-0.5
    ctx = (q @ kc.permute(1, 2, 0)).reshape(KV, n, W * G, c)
    own = (q.reshape(KV, n, W * G, HD) @ k.permute(2, 0, 3, 1))
    ctx = ctx.masked_fill(hidden[None, :, None, :], float("-inf"))
    prob = torch.cat([ctx, own], -1).softmax(-1)
    out = (prob[..., :c].reshape(KV, n * W * G, c) @ vc.transpose(0, 1)).reshape(KV, n, W * G, HD)
    out = out + prob[..., c:] @ v.permute(2, 0, 1, 3)
    return out.reshape(KV, n * W, G, HD).permute(1, 0, 2, 3).reshape(n, W, HEADS * HD)


def batch():
    taps = torch.randn(a.batch, a.length, TAPS * H)
    anchors = torch.stack([torch.randperm(a.length - a.prompt - W)[:a.anchors].sort().values + a.prompt
                           for _ in range(a.batch)])
    labels = torch.randint(0, a.vocab, (a.batch * a.anchors, W - 1))
    return taps, anchors, labels


def context(taps, anchors):
    last = [int(x[-1]) for x in anchors]
    h = rms(torch.cat([t[:n] for t, n in zip(taps, last)]) @ fc.T, hidden_norm)
    pos = torch.cat([torch.arange(n) for n in last])
    kv = [(rope(rms((h @ l["k"].T).reshape(-1, KV, HD), l["kn"]), pos),
           (h @ l["v"].T).reshape(-1, KV, HD)) for l in layers]
    return last, kv


def blocks(tokens, anchors, last, kv):
    x = F.embedding(tokens, embed).reshape(-1, H)
    pos = (anchors.reshape(-1, 1) + torch.arange(W)).reshape(-1)
    for l, (kc, vc) in zip(layers, kv):
        u = rms(x, l["n1"])
        q = rope(rms((u @ l["q"].T).reshape(-1, HEADS, HD), l["qn"]), pos)
        k = rope(rms((u @ l["k"].T).reshape(-1, KV, HD), l["kn"]), pos)
        v = (u @ l["v"].T).reshape(-1, KV, HD)
        parts, at = [], 0
        for i, n in enumerate(last):
            rows = slice(i * a.anchors * W, (i + 1) * a.anchors * W)
            shape = (a.anchors, W)
            parts.append(attention(q[rows].reshape(*shape, HEADS, HD), k[rows].reshape(*shape, KV, HD),
                                   v[rows].reshape(*shape, KV, HD), kc[at:at + n], vc[at:at + n],
                                   anchors[i]).reshape(-1, HEADS * HD))
            at += n
        x = x + torch.cat(parts) @ l["o"].T
        u = rms(x, l["n2"])
        x = x + (F.silu(u @ l["gate"].T) * (u @ l["up"].T)) @ l["down"].T
    x = rms(x, norm).reshape(-1, W, H)[:, 1:].reshape(-1, H)
    return x @ head.T


def step():
    taps, anchors, labels = batch()
    weight = torch.exp(-torch.arange(W - 1).float() / (W / 2)).repeat(labels.shape[0])
    t0 = time.perf_counter()
    optimiser.zero_grad(set_to_none=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
        last, kv = context(taps, anchors)
        tokens = torch.full((labels.shape[0], W), 4)
        z = blocks(tokens, anchors, last, kv)
        loss = (F.cross_entropy(z.float(), labels.reshape(-1), reduction="none") * weight).sum() / weight.sum()
        if not a.p1:
            with torch.no_grad():
                prob, v = z.float().softmax(-1).max(-1)
                mixed = torch.where(prob >= 0.5, labels.reshape(-1), v)
            tokens[:, 1:] = mixed.reshape(-1, W - 1)
            z = blocks(tokens, anchors, last, kv)
            loss = loss + (F.cross_entropy(z.float(), labels.reshape(-1), reduction="none") * weight).sum() / weight.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    optimiser.step()
    return time.perf_counter() - t0


step()
times = [step() for _ in range(a.steps)]
t = statistics.median(times)
print(f"torch {torch.__version__}, {a.threads} threads{', bf16' if a.bf16 else ''}"
      f"{', P1 alone' if a.p1 else ''}{', stock attention' if a.stock else ''}: "
      f"{t:.3f} s a step ({min(times):.3f}-{max(times):.3f}), {a.batch * a.length / t:.0f} tokens/s")
