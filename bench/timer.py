# SPDX-License-Identifier: MIT
"""How the scripts of this folder time a call."""

import time

import torch


def synchronize(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def device_ms(call, device, runs=3, warm_up=2, calls=1, asleep=False) -> list[float]:
    """Milliseconds of a call in each run, warm-up left out: between two events on a GPU, by the clock on a CPU. A run
    has `calls` calls, of which it is the mean. asleep: the GPU sleeps while they are queued, so that the host's time
    does not count."""
    found = []
    for _ in range(warm_up + runs):
        if torch.device(device).type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            if asleep:
                torch.cuda._sleep(40_000_000)
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / calls)
        else:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            found.append(1e3 * (time.perf_counter() - began) / calls)
    return found[warm_up:]


def cold_ms(call, chill) -> float:
    """Milliseconds of a call of the GPU between two events, behind chill(), which fills its caches with other data."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    chill()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def step_ms(call, device, runs, warm_up=0, calls=1) -> list[float]:
    """Milliseconds of a call in each run, by the clock between two synchronisations: host and device together."""
    found = []
    for _ in range(warm_up + runs):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        found.append(1e3 * (time.perf_counter() - began) / calls)
    return found[warm_up:]


def host_us(call) -> float:
    """The host's time of a call, the least of several runs, while a GPU sleeps. On a CPU many short runs find one that
    nothing else disturbed."""
    on_gpu = torch.cuda.is_available()
    calls, runs = (100, 7) if on_gpu else (20, 1000)
    for _ in range(10):
        call()
    found = []
    for _ in range(runs):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(int(1e8))
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls * 1e6)
    if on_gpu:
        torch.cuda.synchronize()
    return min(found)
