"""Attention alone beside PyTorch's scaled_dot_product_attention, in one run.

Usage: attention.py HEADSCOPE [--heads 12x64] [--tokens 1024,2048,4096] [--repeats 7] [--threads 2]
Needs the package torch. PyTorch runs its causal path, and its masked one for a window of an eighth, which is all it has for
windows. The two take turns, length by length.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch


def peer(length, heads, width, repeats):
    query, key, value = (torch.randn(1, heads, length, width) for _ in range(3))
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    mask = (distance >= 0) & (distance < length // 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    times = {"causal": [], "masked": []}
    with torch.inference_mode():
        for repeat in range(repeats + 1):
            for kind, run in (
                ("causal", lambda: attend(query, key, value, is_causal=True)),
                ("masked", lambda: attend(query, key, value, attn_mask=mask)),
            ):
                started = time.perf_counter()
                run()
                elapsed = (time.perf_counter() - started) * 1e3
                if repeat:
                    times[kind].append(elapsed)
    return times


def shown(times):
    return f"{statistics.median(times):7.1f} ({min(times):.1f} to {max(times):.1f})"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("headscope")
    arguments.add_argument("--heads", default="12x64")
    arguments.add_argument("--tokens", default="1024,2048,4096")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    heads, width = (int(n) for n in options.heads.split("x"))
    print(f"{options.threads} threads, {options.repeats} runs each, times in ms: median (smallest to largest)")
    for length in (int(t) for t in options.tokens.split(",")):
        done = subprocess.run(
            [options.headscope, "bench", "--attention", options.heads, "--engine", "cpu", "--tokens", str(length),
             "--repeats", str(options.repeats)],
            check=True, capture_output=True, text=True,
            env={**os.environ, "RAYON_NUM_THREADS": str(options.threads)},
        )
        own = {run["map"]: run for run in json.loads(done.stdout)}
        other = peer(length, heads, width, options.repeats)
        full = statistics.median(own["full"]["ms"])
        print(f"{length} tokens: full {shown(own['full']['ms'])}; PyTorch causal {shown(other['causal'])};"
              f" PyTorch / ours {statistics.median(other['causal']) / full:.2f}")
        eighth = own[f"window {length // 8}"]
        print(f"    window {length // 8}: PyTorch masked {shown(other['masked'])};"
              f" PyTorch / ours {statistics.median(other['masked']) / statistics.median(eighth['ms']):.1f}")
        for name, run in own.items():
            share = statistics.median(run["ms"]) / full
            bound = 1.15 * run["causal_acr"] + 0.05
            print(f"    {name:12} {shown(run['ms'])}: {share:.3f} of full, bound {bound:.3f};"
                  f" causal ACR {run['causal_acr']:.3f}, EAR {run['ear']:.3f}")


if __name__ == "__main__":
    main()
