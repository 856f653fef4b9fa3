"""Seed one defect after another into a copy of the sources and see that the tests go red for each.

Called by tools/defects with the repository's root, in the environment of tools/setup.
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

QUERY = "shaders/attention/query_backward.slang"
HISTORY = "shaders/attention/history_backward.slang"
PREPROCESS = "shaders/mamba3/preprocess_backward.slang"

# What is wrong, where, the right text, the wrong one, and the tests that are to see it.
DEFECTS = [
    ("a query is dropped", HISTORY, "uint place = begin;", "uint place = begin + 1;", "attention"),
    ("two pages are swapped", QUERY, "uint page = metadata.page(sequence, token / push.page_size);",
     "uint page = metadata.page(sequence, token / push.page_size);\n        page = page < 2 ? 1 - page : page;",
     "attention"),
    ("the last lane is skipped", HISTORY, "if (d < key_dim) dot = fma(", "if (d + 1 < key_dim) dot = fma(", "attention"),
    ("the head map is wrong", QUERY, "this.kv_head = head / (push.heads / push.kv_heads);",
     "this.kv_head = head % push.kv_heads;", "attention"),
    ("the binary search is off by one", HISTORY, "if (metadata.position(inverse.row(middle)) < token)",
     "if (metadata.position(inverse.row(middle)) <= token)", "attention"),
    ("a barrier is missing", "src/runtime/recorder.rs", "self.recording.commands.barrier(barrier);", "let _ = barrier;",
     "runtime"),
    ("the clamp mask is strict", PREPROCESS, "softplus >= push.dt_min", "softplus > push.dt_min", "mamba3"),
    ("the sigmoid cancels", "shaders/shared/ssm_math.slang", "return (x >= 0.0 ? 1.0 : e) / (1.0 + e);",
     "return 1.0 - exact_exp(-ssm_softplus(x));", "mamba3"),
    ("zeros are not stored", HISTORY, "    store_sums<E>(slot);\n}", "    if (inverse.link_begin(slot.page) < end) store_sums<E>(slot);\n}", "attention"),
    ("the dt_bias chunks have another length", "src/kernels/mamba3/preprocess_backward.rs",
     "let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks };",
     "let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks.saturating_sub(1) };", "mamba3"),
]


def copy_of(root):
    """The tracked files, in a folder whose build is kept from run to run."""
    copy = root / "target" / "defects" / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, names.decode().split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
    return copy


def test(copy, binary):
    """The exit status of one test binary and what it printed."""
    command = ["cargo", "test", "--locked", "--test", binary, "--target-dir", copy.parent / "build"]
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


def verdict(status, output):
    """Which tests failed; None if none did. A defect that does not build says nothing of the tests."""
    failed = re.findall(r"^test (?:\[\w+\] +)?(\S+) +\.\.\. FAILED", output, re.MULTILINE)
    if failed:
        return ", ".join(failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    if status and "could not compile" in output or "custom build command" in output:
        raise SystemExit(f"error: the defect does not build\n{output[-2000:]}")
    return "the test binary died" if status else None


def main(root):
    root = Path(root)
    copy = copy_of(root)
    for binary in sorted({defect[-1] for defect in DEFECTS}):
        status, output = test(copy, binary)
        if status:
            raise SystemExit(f"error: {binary} fails without any defect\n{output[-2000:]}")
    missed = 0
    for what, name, right, wrong, binary in DEFECTS:
        path = copy / name
        text = path.read_text()
        if text.count(right) < 1:
            raise SystemExit(f"error: {name} no longer has the text of the defect `{what}`: {right}")
        path.write_text(text.replace(right, wrong, 1))
        caught = verdict(*test(copy, binary))
        path.write_text(text)
        missed += caught is None
        print(f"{what:<42} {caught or 'NOT SEEN'}", flush=True)
    print(f"{len(DEFECTS) - missed} passed, {missed} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
