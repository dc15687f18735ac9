# SPDX-License-Identifier: Apache-2.0
"""A device that is lost under the daemon: everybody is told, the process ends, the unit starts it again.

The device is the emulated one; CUEMU_FAIL names the file whose coming makes all its calls fail.  Speaks TAP.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (BUILD, MODELS, SLOW, Daemon, Notify, endless, greedy, main, pb, refused,  # noqa: E402
                     test)
from dedit_py import Client, Closed, DaemonError, FAILED, FINISHED, TOKENS  # noqa: E402

LIBRARY = os.path.join(BUILD, "libdedit-cuda-emu.so")
LOST, STATUS = -20018, 75
if not os.path.exists(LIBRARY):
    print("1..0 # SKIP the emulated device is not built")
    sys.exit(0)


class Device:
    """A daemon with a model on the device, and one on the CPU."""

    def __init__(self, *options, lost=False, gpu="", wait=True):
        self.notify = Notify(False)
        self.order = self.notify.dir + "/lost"
        if lost:
            self.lose()
        conf = ("[model gpu]\npath = %s/d_qwen3\ndevice = emu\nmax_num_seqs = 1\n%s\n"
                "[model cpu]\npath = %s/a_llama_tied\ndevice = cpu\npreload = yes\n"
                % (MODELS, gpu or "preload = yes", MODELS))
        self.d = Daemon(*options, models=(), conf=conf, wait=wait,
                        env={"DEDIT_CUDA_EMU": LIBRARY, "CUEMU_FAIL": self.order,
                             "CUEMU_CHECK": "1000", "NOTIFY_SOCKET": self.notify.name})

    def lose(self):
        with open(self.order + ".new", "w") as f:
            f.write("700\n")
        os.rename(self.order + ".new", self.order)

    def check_end(self):
        """It ends by itself, says why once, and so that a service manager starts it again."""
        self.d.process.wait(60 * SLOW)
        self.notify.read("ERRNO=5", 1)
        assert "STOPPING=1" in self.notify.got, self.notify.got
        lines = [line for line in self.d.text().splitlines() if line[:3] in ("<3>", "<4>")]
        said = [line for line in lines if line.startswith("<3>device: ")]
        assert len(said) == 1 and "the device is lost: " in said[0], lines
        assert "(cudaErrorIllegalAddress); ending, to be started again" in said[0], said
        assert [line for line in lines if line not in said and "loading gpu failed" not in line] == []
        self.d.stop(STATUS)
        self.notify.close()


def of(model, fill):
    def both(s):
        fill(s)
        s.model = model
    return both


@test
def a_lost_device_ends_the_daemon():
    """One runs, one waits, both on the device: told.  One on the CPU goes on to its end.  Status 75."""
    g = Device("--drain-timeout", "60s")
    gpu, waits, cpu = g.d.client(), g.d.client(), g.d.client()
    on_cpu = cpu.submit(of("cpu", endless([1, 2, 3])))
    runs = gpu.submit(of("gpu", greedy([1, 2, 3], 400)))
    queued = waits.submit(of("gpu", greedy([4, 5], 400)))
    records = gpu.records(runs)
    first = next(records)
    assert first["type"] == TOKENS, first
    g.lose()
    last = [r for r in records][-1]
    assert (last["type"], last["code"], last["reason"]) == (FAILED, LOST, "error"), last
    assert "the device is lost: " in last["message"], last
    assert gpu.wait_finished(runs.request_id).error.code == "device-lost"
    ids, _, last = waits.ids(queued)
    assert ids == [] and (last["type"], last["code"]) == (FAILED, LOST), last
    try:  # before the listening socket goes, or after
        refused("closed", ["draining"], gpu.submit, of("cpu", greedy([1], 1)))
    except Closed:
        pass
    assert g.d.process.poll() is None, "it does not wait for the model on the CPU"
    ids, _, last = cpu.ids(on_cpu)
    assert len(ids) == 500 and last["type"] == FINISHED, last
    g.check_end()


@test
def the_drain_is_bounded():
    """A request on the CPU whose reader does not move keeps the daemon for drain_timeout only."""
    g = Device("--drain-timeout", "300ms")
    gpu, mute = g.d.client(), g.d.client()
    held = mute.submit(of("cpu", endless([1, 2, 3])))
    g.d.wait_metric("dedit_num_requests_parked", 1)
    g.lose()
    _, _, last = gpu.ids(gpu.submit(of("gpu", greedy([1, 2, 3], 4))))
    assert (last["type"], last["code"]) == (FAILED, LOST), last
    assert mute.wait_finished(held.request_id).finish_reason == "shutdown"
    g.check_end()


@test
def lost_in_loading():
    """At the start: not the status that keeps the unit from trying again.  On demand: the request is told."""
    g = Device(lost=True, wait=False)
    g.check_end()
    g = Device(gpu="on_demand = yes")
    c = g.d.client()
    g.lose()
    refused("device-lost", ["the device is lost: "], c.submit, of("gpu", greedy([1, 2], 3)))
    g.check_end()


sys.exit(main("device"))
