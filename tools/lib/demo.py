"""Run kernels, forward and backward, on the best device here and check their results.

Called by tools/demo with the program's path and the repository's root.
"""
import json
import math
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import npy

# Largest relative error by element type.
TOLERANCE = {"f32": 2e-6, "f16": 1e-3}
COLUMNS = "{:<39} {:<34} {:<22} {:>9} {:>9} {:>10} {:>8}  {}"


class DemoError(Exception):
    pass


def backslang(program, *args):
    """Run the program with --json; its report."""
    command = [program, "--json", *map(str, args)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {}
    error = report.get("error")
    if done.returncode or error or not isinstance(report.get("outputs"), dict):
        said = f"{error['kind']}: {error['message']}" if error else done.stdout.strip() or "no output"
        raise DemoError(f"{' '.join(command)}\n  exit status {done.returncode}: {said}")
    return report


def relative_error(got, want):
    """Frobenius norm of the difference over that of what is wanted; inf if not comparable."""
    if tuple(got.shape) != tuple(want.shape):
        return math.inf
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(got.values, want.values)))
    norm = math.sqrt(sum(b * b for b in want.values))
    error = difference / norm if norm else difference
    return error if math.isfinite(error) else math.inf


def largest_error(report, expected):
    """Over all outputs; an output with nothing to compare to counts as wrong."""
    if not report["outputs"]:
        return math.inf
    return max(relative_error(npy.read(output["path"]), npy.read(expected[name])) if name in expected else math.inf
               for name, output in report["outputs"].items())


def unpack(archive, folder):
    """An .npz is a zip of .npy files: the inputs into one folder, what is expected into another."""
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            file.extract(name, folder / ("expected" if name.startswith("expected_") else "inputs"))
    return folder / "inputs", {p.stem[len("expected_"):]: p for p in (folder / "expected").glob("*.npy")}


def milliseconds(value):
    return f"{value:.3f}" if isinstance(value, (int, float)) else "-"


def row(title, report, error, tolerance):
    shapes = [output["shape"] for output in report["outputs"].values()]
    shape = "x".join(map(str, max(shapes, key=math.prod)))
    device = report.get("device")
    device = device.get("name") if isinstance(device, dict) else device
    good = error is None or error <= tolerance
    print(COLUMNS.format(title, str(device)[:34], shape, milliseconds(report.get("gpu_ms")),
                         milliseconds(report.get("wall_ms")), "-" if error is None else f"{error:.2e}",
                         "-" if error is None else f"{tolerance:g}", "ok" if good else "FAIL"), flush=True)
    return good


def case(program, command, title, inputs, folder, expected=None, dtype="f32"):
    """One row for the device and one for the reference; True if both are right.

    Without expected values the reference is the measure: it computes in float64.
    """
    report = backslang(program, command, "-i", inputs, "-o", folder / "device")
    reference = backslang(program, command, "-i", inputs, "-o", folder / "reference", "--device", "reference")
    if expected is None:
        measure = {name: output["path"] for name, output in reference["outputs"].items()}
        reference_error = None
    else:
        measure = expected
        reference_error = largest_error(reference, expected)
    good = row(title, report, largest_error(report, measure), TOLERANCE[dtype])
    return row(title, reference, reference_error, TOLERANCE[dtype]) and good


def main(program, root):
    folder = Path(root) / "target" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(COLUMNS.format("kernel", "device", "largest output", "GPU ms", "wall ms", "error", "allowed", ""))
    runs = []

    def attention():
        inputs, expected = unpack(Path(root) / "tests/data/real_attention_f32.npz", folder / "attention-real")
        return case(program, "paged-attention-backward", "paged-attention-backward (real data)", inputs,
                    folder / "attention-real", expected)

    runs.append(attention)
    for command, dtype in (("mamba3-preprocess", "f32"), ("mamba3-preprocess-backward", "f32"),
                           ("paged-attention", "f16"), ("paged-attention-backward", "f16")):
        def sample(command=command, dtype=dtype):
            inputs = folder / command / "inputs"
            subprocess.run([program, "sample", command, "-o", inputs, "--seed", "1", "--dtype", dtype], check=True,
                           stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            return case(program, command, f"{command} ({dtype} sample)", inputs, folder / command, dtype=dtype)
        runs.append(sample)

    good = True
    for run in runs:
        try:
            good = run() and good
        except (DemoError, OSError, ValueError, KeyError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
            print(f"FAIL: {error}", flush=True)
            good = False
    print(f"error: relative Frobenius norm, largest over the outputs; real data against float64 values in the file, "
          f"samples against the float64 reference\n"
          f"GPU ms: of one first run; a software driver compiles the kernels within it\noutputs: {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
