#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same from Python, with ctypes and nothing else."""
import ctypes
import sys
from ctypes import (POINTER, Structure, byref, c_char, c_char_p, c_float, c_int, c_int32, c_size_t,
                    c_uint32, c_uint64, c_void_p, sizeof, string_at)

TOKENS, ROUND, FINISHED, FAILED = 1, 2, 3, 4


class Error(Structure):
    _fields_ = [("code", c_int32), ("msg", c_char * 512)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t), ("model", c_char_p), ("text", c_char_p), ("text_len", c_size_t),
        ("messages", c_void_p), ("n_messages", c_size_t), ("ids", POINTER(c_uint32)),
        ("n_ids", c_size_t), ("chat_format", c_char_p), ("tools_json", c_char_p),
        ("enable_thinking", c_int32), ("parse_special", c_int32), ("raw", c_int32),
        ("temperature", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float),
        ("repetition_penalty", c_float), ("frequency_penalty", c_float),
        ("presence_penalty", c_float), ("seed", c_uint64), ("has_seed", c_int32),
        ("max_tokens", c_uint32), ("min_tokens", c_uint32), ("ignore_eos", c_int32),
        ("logprobs", c_int32), ("logit_bias", c_void_p), ("n_logit_bias", c_size_t),
        ("stop_token_ids", POINTER(c_uint32)), ("n_stop_token_ids", c_size_t),
        ("stop", POINTER(c_char_p)), ("n_stop", c_size_t),
        ("include_stop_str_in_output", c_int32), ("skip_special_tokens", c_int32),
        ("method", c_char_p), ("window", c_uint32), ("passes", c_uint32),
        ("tree_budget", c_uint32), ("edit_visibility", c_char_p), ("verification", c_char_p),
        ("no_noise", c_int32), ("priority", c_int32),
        ("timeout_ms", c_uint64), ("cache_salt", c_char_p), ("rounds", c_int32),
        ("want_text", c_int32), ("ring_bytes", c_uint32)]


class Usage(Structure):
    _fields_ = ([(n, c_uint32) for n in ("prompt_tokens", "completion_tokens", "cached_tokens",
                                         "preemptions")] +
                [(n, c_uint64) for n in ("queued_ns", "first_token_ns", "total_ns", "rounds",
                                         "drafted_tokens", "accepted_tokens", "committed_tokens",
                                         "seed")] + [("method", c_char_p), ("reserved", c_uint64 * 3)])


class Event(Structure):
    _fields_ = [("type", c_uint32), ("n_tokens", c_uint32), ("tokens", c_void_p),
                ("text", c_void_p), ("text_len", c_size_t), ("window", c_uint32),
                ("passes", c_uint32), ("nodes", c_uint32), ("committed", c_uint32),
                ("accepted", POINTER(c_uint32)), ("confidence", POINTER(c_float)),
                ("draft", POINTER(c_uint32)), ("node_token", POINTER(c_uint32)),
                ("node_parent", POINTER(c_int32)),
                ("finish_reason", c_char_p), ("stop_reason", c_char_p), ("usage", Usage),
                ("error_code", c_int32), ("error_message", c_char_p), ("reserved", c_uint64 * 6)]


def load():
    lib = ctypes.CDLL("libdedit.so.0")
    lib.dedit_error_name.restype = c_char_p
    lib.dedit_client_connect.argtypes = [c_char_p, POINTER(c_void_p), POINTER(Error)]
    lib.dedit_options_init.argtypes = [POINTER(Options), c_size_t]
    lib.dedit_client_submit.argtypes = [c_void_p, POINTER(Options), POINTER(c_void_p), POINTER(Error)]
    lib.dedit_request_next.argtypes = [c_void_p, POINTER(Event), c_int, POINTER(Error)]
    for f in (lib.dedit_request_free, lib.dedit_client_free):
        f.argtypes = [c_void_p]
        f.restype = None
    return lib


class DeditError(Exception):
    pass


def answer(lib, prompt, max_tokens=32):
    """Pieces of the answer, as they come."""
    err = Error()

    def check(r):
        if r < 0:
            raise DeditError("%s: %s" % (lib.dedit_error_name(r).decode(), err.msg.decode()))
        return r

    client, request = c_void_p(), c_void_p()
    check(lib.dedit_client_connect(None, byref(client), byref(err)))
    try:
        o = Options()
        lib.dedit_options_init(byref(o), sizeof(o))
        o.text = prompt.encode()
        o.temperature = 0
        o.max_tokens = max_tokens
        check(lib.dedit_client_submit(client, byref(o), byref(request), byref(err)))
        ev = Event()
        while check(lib.dedit_request_next(request, byref(ev), -1, byref(err))):
            if ev.type == TOKENS:
                yield string_at(ev.text, ev.text_len).decode()
            elif ev.type == FAILED:
                raise DeditError("%s: %s" % (ev.finish_reason.decode(), ev.error_message.decode()))
            elif ev.type == FINISHED:
                break
    finally:
        lib.dedit_request_free(request)
        lib.dedit_client_free(client)


if __name__ == "__main__":
    try:
        for piece in answer(load(), sys.argv[1] if len(sys.argv) > 1 else "The capital of France is"):
            print(piece, end="", flush=True)
        print()
    except DeditError as e:
        sys.exit(str(e))
