"""Whole forward passes beside PyTorch and transformers, in one run.

Usage: forward.py HEADSCOPE GGUF [--tokens 512,2048,8192] [--repeats 5] [--threads 2]
Needs the packages torch, transformers, accelerate and gguf. Prints a table; times are medians, with the smallest and largest.

Both compute, from the same token ids, logits and the loss of every token. transformers runs its sdpa attention. The two
take turns, length by length, so that what else the machine does meets both.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time


def peer(path, lengths, repeats, threads, ids_of):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    started = time.perf_counter()
    folder, name = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    yield {"open_s": time.perf_counter() - started}
    for length in lengths:
        ids = torch.tensor([ids_of(length)])
        times = []
        with torch.inference_mode():
            for repeat in range(repeats + 1):
                started = time.perf_counter()
                logits = model(ids, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
                elapsed = time.perf_counter() - started
                if repeat:
                    times.append(elapsed * 1e3)
        yield {"tokens": length, "ms": times, "loss": loss.mean().item()}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("headscope")
    arguments.add_argument("gguf")
    arguments.add_argument("--tokens", default="512,2048,8192")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    options = arguments.parse_args()
    lengths = [int(t) for t in options.tokens.split(",")]
    listing = subprocess.run(
        [options.headscope, "tokens", options.gguf, "--text", "sample:long", "--format", "json"],
        check=True, capture_output=True, text=True,
    )
    ids = json.loads(listing.stdout)["ids"]

    def ids_of(length):
        return [ids[i % len(ids)] for i in range(length)]

    def ours(length):
        done = subprocess.run(
            [options.headscope, "bench", options.gguf, "--engine", "cpu", "--tokens", str(length),
             "--repeats", str(options.repeats)],
            check=True, capture_output=True, text=True,
            env={**os.environ, "RAYON_NUM_THREADS": str(options.threads)},
        )
        return json.loads(done.stdout)

    def shown(times):
        return f"{statistics.median(times):8.0f} ({min(times):.0f} to {max(times):.0f})"

    peers = peer(options.gguf, lengths, options.repeats, options.threads, ids_of)
    opened = next(peers)
    print(f"{options.threads} threads, {options.repeats} runs each, times in ms: median (smallest to largest)")
    for length in lengths:
        own = ours(length)
        other = next(peers)
        run = own["runs"][0]
        own_ms, other_ms = statistics.median(run["full_ms"]), statistics.median(other["ms"])
        print(
            f"{length:6} tokens: headscope {shown(run['full_ms'])}, {length / own_ms * 1e3:.0f} tokens/s;"
            f" transformers {shown(other['ms'])}, {length / other_ms * 1e3:.0f} tokens/s;"
            f" ratio {own_ms / other_ms:.2f}; windows of {run['window']}: {shown(run['windowed_ms'])}"
        )
        print(
            f"               loss {run['loss']:.5f} and {other['loss']:.5f};"
            f" opened in {own['open_ms'] / 1e3:.2f} and {opened['open_s']:.2f} s;"
            f" peak of headscope {own['peak_rss_kib'] / 1024:.0f} MiB"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak of transformers over all lengths {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
