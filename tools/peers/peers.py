#!/usr/bin/env python3
"""Run PyTorch at the sizes that `backslang bench --json` measured, and print both side by side.

    backslang bench --dtype all --forward --json > ours.json
    tools/peers/peers.py ours.json

Attention, with keys and values given as dense arrays: the backends of scaled_dot_product_attention and FlexAttention; from
pages: a gather, the fastest of these, and a scatter-add. Mamba-3: the preprocess as written, and by torch.compile. What a
version or device cannot do is told of. Installs nothing: it needs PyTorch, 2.5 or later, and for figures that can be
compared the device that backslang ran on. On CPUs it shows that it works:

    backslang bench --shrink 256 --json | tools/peers/peers.py - --device cpu
"""
import argparse
import json
import statistics
import sys
import time

import attention
import mamba3


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ours", help="the object of `backslang bench --json`, or `-` for standard input")
    parser.add_argument("--case", action="append", help="run this case alone; repeatable")
    parser.add_argument("--device", help="PyTorch's name of the device [default: cuda, else cpu]")
    parser.add_argument("--repeats", type=int, default=15, help="runs after those to warm up [default: 15]")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    return parser.parse_args()


def load(path):
    """The measured cases of backslang."""
    if path == "-":
        report = json.load(sys.stdin)
    else:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    benches = report.get("kernel_benches")
    if not isinstance(benches, dict) or not isinstance(benches.get("cases"), list):
        found = ", ".join(sorted(report)) if isinstance(report, dict) else type(report).__name__
        raise SystemExit(f"error: {path}: expected the key `kernel_benches` of `backslang bench --json`, found {found}")
    return benches["cases"]


class Clock:
    """Times work on a device, in milliseconds, with caches that hold something else before each run."""

    WARM_SECONDS = 0.1

    def __init__(self, torch, device, repeats):
        self.torch, self.device, self.repeats = torch, device, repeats
        self.cuda = device.type == "cuda"
        self.other = torch.empty(256 << 20 if self.cuda else 1, dtype=torch.uint8, device=device)

    def median(self, work):
        begin = time.perf_counter()
        warm = 0
        while warm < 3 or time.perf_counter() - begin < self.WARM_SECONDS:
            self.once(work)
            warm += 1
        return statistics.median(self.once(work) for _ in range(self.repeats))

    def once(self, work):
        self.other.zero_()
        if not self.cuda:
            begin = time.perf_counter()
            work()
            return 1e3 * (time.perf_counter() - begin)
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


def measure(case, torch, clock):
    """For each peer of a case its milliseconds, or why there are none."""
    family = attention if case["case"].startswith("attention") else mamba3
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
    torch.manual_seed(0)
    results = {}
    with_times = family.peers(torch, case, dtype, clock.device, results)
    for name, make in with_times:
        try:
            results[name] = clock.median(make())
        except Exception as error:  # What a peer lacks comes as any of PyTorch's exceptions.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            results[name] = lines[0] if lines else type(error).__name__
        if clock.cuda:
            torch.cuda.empty_cache()
    return results


def table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)] + [row[-1]]
        print("  ".join(cells).rstrip())


def show(measured):
    rows = [("case", "type", "backslang ms", "peer", "ms", "peer / backslang")]
    for case, results in measured:
        ours = case["time"]["median"]
        for name, result in results.items():
            head = (case["case"], case["dtype"], f"{ours:.4g}", name)
            if isinstance(result, float):
                rows.append((*head, f"{result:.4g}", f"{result / ours:.3g}"))
            else:
                rows.append((*head, "-", result))
    table(rows)


def main():
    args = arguments()
    cases = load(args.ours)
    if args.case:
        known = {case["case"] for case in cases}
        unknown = [name for name in args.case if name not in known]
        if unknown:
            raise SystemExit(f"error: --case: expected one of {', '.join(sorted(known))}, found {unknown[0]}")
        cases = [case for case in cases if case["case"] in args.case]
    try:
        import torch
    except ImportError as error:
        raise SystemExit(f"error: PyTorch is missing ({error}): install it for this device, see https://pytorch.org") from error
    # Compiled backwards are run again and again.
    if hasattr(torch, "_functorch"):
        import torch._functorch.config as functorch

        functorch.donated_buffer = False
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    clock = Clock(torch, device, args.repeats)
    measured = [(case, measure(case, torch, clock)) for case in cases]
    if args.json:
        keys = ("case", "pass", "dtype")
        objects = [
            {key: case[key] for key in keys} | {"ours_ms": case["time"]["median"], "peers": results}
            for case, results in measured
        ]
        print(json.dumps({"torch": torch.__version__, "device": str(device), "cases": objects}, indent=1))
    else:
        show(measured)


if __name__ == "__main__":
    main()
