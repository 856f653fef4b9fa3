"""Seed one defect after another into a copy of the sources and see that the tests go red for each.

Called by tools/defects with the repository's root and parts of defects' names, in the environment of tools/setup.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

QUERY = "shaders/attention/query_backward.slang"
HISTORY = "shaders/attention/history_backward.slang"
FORWARD = "shaders/attention/paged_attention.slang"
MERGE = "shaders/attention/paged_attention_merge.slang"
APPEND = "shaders/attention/paged_append.slang"
APPEND_BACKWARD = "shaders/attention/paged_append_backward.slang"
TILES = "shaders/shared/tiles.slang"
PREPROCESS = "shaders/mamba3/preprocess_backward.slang"
MAMBA3_ROWS = "src/kernels/mamba3/rows.rs"
CALL = "src/kernels/attention/backward/call.rs"
HALF = "shaders/shared/half.slang"
RECORDER = "src/runtime/recorder.rs"
COMMAND = "src/runtime/raw/command.rs"
REQUIREMENTS = "src/runtime/raw/requirements.rs"


class Tests(NamedTuple):
    """Which tests are to see a defect: a test binary, or lib for the unit tests; of these, those whose names contain
    `part`; built with further arguments for cargo and run in a changed environment."""
    binary: str
    part: str = ""
    cargo: Tuple[str, ...] = ()
    env: Dict[str, str] = {}

    def key(self):
        return self.binary, self.part, self.cargo, tuple(sorted(self.env.items()))


class Defect(NamedTuple):
    what: str
    file: str
    right: str
    wrong: str
    tests: Tests


ATTENTION, MAMBA3, RUNTIME, EMBED, SPIRV, UNIT = map(Tests, ("attention", "mamba3", "runtime", "embed", "spirv", "lib"))

HALVES = Tests("halves", "rounds_to_nearest_even")
SHARDS = Tests("shards")
MERGE_COMMAND = Tests("cli", "shards::")

# On the forms of the kernels that the validation layer can look into; the results are right all the same. What is built is
# no more than needed, and is not optimized: it has results to compare with.
FORMS = ATTENTION._replace(part="golden", cargo=("--no-default-features", "--features", "forms"))
UNOPTIMIZED = {"CARGO_PROFILE_DEV_OPT_LEVEL": "0", "CARGO_PROFILE_DEV_DEBUG": "none"}
FIXED_HEAP = FORMS._replace(env={"BACKSLANG_FORM": "fixed-heap", "BACKSLANG_VALIDATE": "core,gpu", **UNOPTIMIZED})
PLAIN = FORMS._replace(env={"BACKSLANG_FORM": "plain", "BACKSLANG_VALIDATE": "core,sync", **UNOPTIMIZED})

DEFECTS = [
    # Kernels.
    Defect("a query is dropped", HISTORY, "uint place = begin;", "uint place = begin + 1;",
           ATTENTION._replace(part="golden")),
    Defect("two pages are swapped", QUERY, "return metadata().slot(tile.unit.sequence, token, push.page_size) * push.kv_heads + tile.kv_head;",
           "uint slot = metadata().slot(tile.unit.sequence, token, push.page_size);\n    uint page = slot / push.page_size;\n"
           "    if (page < 2) slot = (1 - page) * push.page_size + slot % push.page_size;\n"
           "    return slot * push.kv_heads + tile.kv_head;",
           ATTENTION._replace(part="golden")),
    Defect("the last of four elements is skipped", TILES, "return fma(a.w, b.w, fma(a.z, ",
           "return (fma(a.z, ",
           ATTENTION._replace(part="golden")),
    Defect("the head map is wrong", QUERY, "this.head = tile.kv_head * tile.group() + item % tile.group();",
           "this.head = tile.kv_head + item % tile.group() * push.kv_heads;", ATTENTION._replace(part="head_map")),
    Defect("the binary search is off by one", HISTORY, "if (metadata.position(inverse.row(middle)) < token)",
           "if (metadata.position(inverse.row(middle)) <= token)", ATTENTION._replace(part="history_settings")),
    Defect("zeros are not stored", HISTORY, "    store_sums<E>();\n}",
           "    if (links > 0) store_sums<E>();\n}", ATTENTION._replace(part="golden")),
    Defect("a slot beyond the row's position is added to", HISTORY, "if (tokens[s] < limit) add_chunk(",
           "if (tokens[s] <= limit) add_chunk(", ATTENTION._replace(part="history_is_summed_in_order")),
    Defect("rows whose denominator is 0 are added", HISTORY, "bool counts = (denominator != 0.0) & items.has(item);",
           "bool counts = items.has(item);", ATTENTION._replace(part="unread_values")),
    Defect("links of unlike pages run side by side", "src/kernels/attention/units.rs",
           "let differ = |i: &usize| !sequences(order[i - 1]).eq(sequences(order[*i]));",
           "let differ = |i: &usize| sequences(order[i - 1]).count() != sequences(order[*i]).count();", Tests("plan", "units")),
    Defect("a larger score leaves the sums as they were", FORWARD, "float total = sum[j] * rescaling;",
           "float total = sum[j];", ATTENTION._replace(part="forward_golden")),
    Defect("the last token of a row counts several times", FORWARD, "total = i < count ? more : total;", "total = more;",
           ATTENTION._replace(part="forward_golden")),
    Defect("a score of −∞ spoils the others", "shaders/shared/softmax.slang",
           "return is_minus_infinity(score) ? 0.0 : exact_exp(score - maximum);",
           "return exact_exp(score - maximum);", ATTENTION._replace(part="forward_nonfinite_scores")),
    Defect("a larger score leaves the denominator as it was", FORWARD, "    denominator *= rescaling;\n", "",
           ATTENTION._replace(part="forward_golden")),
    Defect("the last chunk is left out", MERGE,
           "visible / push.chunk_tokens + (visible % push.chunk_tokens > 0 ? 1 : 0)", "visible / push.chunk_tokens",
           ATTENTION._replace(part="forward_chunks_lengths")),
    Defect("a chunk's denominator is not rescaled", MERGE,
           "denominator = fma(load_f32(push.chunk_statistics_index, 2 * c + 1), rescaling, denominator);",
           "denominator += load_f32(push.chunk_statistics_index, 2 * c + 1);",
           ATTENTION._replace(part="forward_chunks_lengths")),
    Defect("a row is appended to the next slot", APPEND,
           "uint slot = load_word(push.plan_index, push.first_row + row) - push.first_slot;",
           "uint slot = (load_word(push.plan_index, push.first_row + row) ^ 1) - push.first_slot;",
           ATTENTION._replace(part="appends_are_copies")),
    Defect("another row's slot is gathered", APPEND_BACKWARD, "uint slot = slot_of(row);",
           "uint slot = slot_of(row > 0 ? row - 1 : row);",
           ATTENTION._replace(part="gather_is_the_adjoint")),
    Defect("the old gradient is dropped", "shaders/shared/storage.slang",
           "store_f32(buffer, base + d, load_f32(buffer, base + d) + value);", "store_f32(buffer, base + d, value);",
           ATTENTION._replace(part="gradients_are_added")),
    Defect("the old half is dropped", "shaders/shared/storage.slang", "E.encode(E.decode(old) + value)", "E.encode(value)",
           MAMBA3._replace(part="sums_with_old_values")),
    Defect("f16 is truncated", HALF, "return sign | (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;",
           "return sign | rebiased >> 13;", HALVES),
    Defect("bf16 is truncated", HALF, "return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;", "return bits >> 16;",
           HALVES),
    Defect("the distance of q's rows is ignored", QUERY,
           "push.q_index, q_first, q_stride, key_dim, c)", "push.q_index, q_first, 0, key_dim, c)",
           ATTENTION._replace(part="views_of_packed_projections")),
    Defect("the distance of new rows is ignored", APPEND, "uint at = row_begin(row, new_first, new_stride, width) + i;",
           "uint at = new_first + row * width + i;", ATTENTION._replace(part="appends_from_packed_rows")),
    Defect("the distance of packed rows is ignored", "shaders/shared/rows.slang",
           "return first + row * (stride == 0 ? width : stride);", "return first + row * width;",
           MAMBA3._replace(part="rows_apart")),
    Defect("rows are counted on from buffer to buffer", "shaders/shared/rows.slang",
           "return select(part_rows == 0, row, row % max(part_rows, 1));", "return row;", ATTENTION._replace(part="parts_share_bits")),
    Defect("slots of other buffers are appended to", APPEND, "if (slot < push.slots) store_word(", "store_word(",
           ATTENTION._replace(part="appends_in_parts")),
    Defect("the clamp mask is strict", PREPROCESS, "softplus >= push.dt_min", "softplus > push.dt_min", MAMBA3),
    Defect("the sigmoid cancels", "shaders/shared/ssm_math.slang", "return (x >= 0.0 ? 1.0 : e) / (1.0 + e);",
           "return 1.0 - exact_exp(-ssm_softplus(x));", MAMBA3),
    Defect("the driver's exp is used", HISTORY, "float p = exact_exp(", "float p = exp(",
           ATTENTION._replace(part="small_probabilities")),
    # What zeroed memory hides, and devices of one subgroup size.
    Defect("the cache is taken for filled", HISTORY, "    cached = false;\n", "", SPIRV),
    Defect("the sums are not cleared", HISTORY, "slot_sum[i] = float4(0.0);", "slot_cache[i] = float4(0.0);", SPIRV),
    Defect("the dummy is not cleared", "src/runtime/mod.rs", "runtime.core.fill_dummy(0)?;", "",
           RUNTIME._replace(part="dummy")),
    Defect("full subgroups are not asked for", "src/runtime/raw/pipeline.rs", "if desc.full_subgroups {", "if false {",
           UNIT),
    Defect("a heap index is computed", "shaders/attention/clear_pages.slang", "load_word(push.pages_index,",
           "load_word(push.pages_index + group.y,", SPIRV),
    # The runtime and the host side.
    Defect("a barrier is missing", RECORDER, "self.recording.commands.barrier(barrier);", "let _ = barrier;", RUNTIME),
    Defect("the host does not wait for copies", COMMAND,
           "self.barrier(Barrier { before: Stages::TRANSFER, after: Stages::HOST });", "",
           RUNTIME._replace(part="barriers")),
    Defect("submissions do not wait for one another", COMMAND,
           "self.barrier(Barrier { before: Stages::ALL, after: Stages::ALL });", "", RUNTIME._replace(part="barriers")),
    Defect("a feature is used unasked", REQUIREMENTS,
           'feature("maintenance4", None, modern!(PhysicalDeviceMaintenance4Features, maintenance4)),', "",
           RUNTIME._replace(part="usable")),
    Defect("a capability is used unasked", REQUIREMENTS,
           'subgroup("subgroup arithmetic", 63, vk::SubgroupFeatureFlags::ARITHMETIC),', "", UNIT),
    Defect("what a caller recorded before is not waited for", COMMAND,
           "self.barrier(Barrier { before: Stages::ANY, after: Stages::ALL });", "", EMBED._replace(part="ordered")),
    Defect("what a caller records then does not wait", COMMAND,
           "self.barrier(Barrier { before: Stages::ALL, after: Stages::ANY });", "", EMBED._replace(part="ordered")),
    Defect("a caller's buffer is known twice", "src/runtime/tensor.rs", "imports.insert(handle, Arc::downgrade(&storage));",
           "", EMBED._replace(part="meet")),
    Defect("a dispatch does not keep its tensors", RECORDER,
           "tensors.iter().for_each(|tensor| self.keep(tensor));", "",
           RUNTIME._replace(part="slots_in_flight")),
    Defect("a slice lacks its last workgroups", "src/runtime/slices.rs", "add([end, 0], [1, rest])?;", "",
           RUNTIME._replace(part="slices_of")),
    Defect("nobody can cancel", "src/runtime/execution.rs", "ControlFlow::Break(()) => Err(Error::Cancelled),",
           "ControlFlow::Break(()) => Ok(()),", RUNTIME._replace(part="cancelled")),
    Defect("work that is not done in time counts as done", "src/runtime/raw/timeline.rs",
           "Err(vk::Result::TIMEOUT) => Ok(false),", "Err(vk::Result::TIMEOUT) => Ok(true),",
           RUNTIME._replace(part="wait_is_bounded")),
    Defect("a part cuts long rows by its own sizes", "src/kernels/attention/forward/mod.rs",
           "Call::new(&of_inputs, Some(layouts), &plan.plan, options, split, target)?;",
           "Call::new(&of_inputs, Some(layouts), &plan.plan, options, split.and(None), target)?;",
           SHARDS._replace(part="long_histories")),
    Defect("the terms of parts are summed as they come", "src/shard/assembly.rs",
           "self.terms.sort_by_key(|(units, _)| units.start);", "", SHARDS._replace(part="rows_of_its_backward")),
    Defect("pages of a part keep the ids of the whole", "src/kernels/attention/plan.rs",
           "(page as usize).checked_sub(first_page)", "(page as usize).checked_sub(first_page.min(0))",
           SHARDS._replace(part="heads_and_pages")),
    Defect("the rows of a page are those that begin there", "src/shard/slices.rs",
           "used.any(|&page|", "used.next().is_some_and(|&page|", SHARDS._replace(part="heads_and_pages")),
    Defect("rows of a part go to other slots", "src/shard/append.rs", "(slot(row) - slots.start) as i128",
           "(slots.end - 1 - slot(row)) as i128", SHARDS._replace(part="append")),
    Defect("changed parts are merged", "src/cli/shards/merge.rs", "if hash(&values) != entry.sha256 {",
           "if hash(&values).is_empty() {", MERGE_COMMAND._replace(part="shards::parts_that_were_changed")),
    Defect("parts of other inputs are merged", "src/cli/shards/merge.rs", "        .or_else(input)\n",
           "        .or_else(|| input().filter(String::is_empty))\n",
           MERGE_COMMAND._replace(part="shards::parts_of_other_calls")),
    Defect("one binding is taken for all", RECORDER, "Some(_) => Err(tensor.beyond_a_binding()),", "Some(_) => Ok(slot),",
           RUNTIME._replace(part="in_parts")),
    Defect("all windows begin with the first row", "src/kernels/attention/backward/bind.rs",
           'first_row: narrow("queries", self.window.start)?,', "first_row: 0,",
           ATTENTION._replace(part="parts_share_bits")),
    Defect("idle memory is not given up", "src/runtime/memory.rs", " || !self.trim()", "",
           RUNTIME._replace(part="idle_memory")),
    Defect("uploads do not wait for staging", "src/runtime/transfer.rs", "oldest.wait()?;", "drop(oldest);",
           RUNTIME._replace(part="staging")),
    Defect("the value gradient is always stored", CALL,
           "need_value: need(Gradient::V),", "need_value: true,", ATTENTION._replace(part="unasked")),
    Defect("pages that are added to are cleared", CALL, "|g: &Gradient| g.is_history() && !self.adds(*g);",
           "|g: &Gradient| g.is_history();", ATTENTION._replace(part="accumulated_pages")),
    Defect("z in its place is copied", MAMBA3_ROWS, "z: !z.is_same(&slices.z),", "z: true,",
           MAMBA3._replace(part="sums_in_place")),
    Defect("z in a place of its own is not copied", MAMBA3_ROWS, "z: !z.is_same(&slices.z),", "z: false,",
           MAMBA3._replace(part="passed_through_bits")),
    Defect("the dt_bias chunks have another length", "src/kernels/mamba3/preprocess_backward/mod.rs",
           "let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks };",
           "let chunks = RowSum { rows: chunks, heads, chunk_rows: chunks.saturating_sub(1) };", MAMBA3),
    Defect("a token that a row does not see is added", QUERY,
           "float4 sum = fma(float4(ds[i * batch + t]), k, old);\n                    q_sum[i * key_chunks + c] = "
           "select(bool4(all || token + t < seen[i]), sum, old);",
           "q_sum[i * key_chunks + c] = fma(float4(ds[i * batch + t]), k, old);", ATTENTION._replace(part="golden")),
    Defect("the statistics of every fourth token are taken for all", QUERY,
           "joined.denominator = fma(WaveReadLaneAt(denominators[i], from), rescaling, joined.denominator);",
           "joined.denominator = WaveReadLaneAt(denominators[i], from);", ATTENTION._replace(part="golden")),
    Defect("a missing barrier, which the layer sees", RECORDER, "self.recording.commands.barrier(barrier);",
           "let _ = barrier;", PLAIN),
    Defect("a read out of bounds, which the layer sees", TILES,
           "E.load4(buffer, base + (d < width ? d : 0))", "E.load4(buffer, base + d)", FIXED_HEAP),
    Defect("stale SPIR-V is taken", "build/committed.rs", "if committed.sources != sources.hash() {", "if false {",
           Tests("build_files", "committed_modules")),
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


def test(copy, tests):
    """The exit status of the tests and what they printed."""
    target = ["--lib"] if tests.binary == "lib" else ["--test", tests.binary]
    command = ["cargo", "test", "--locked", *target, *tests.cargo, "--target-dir", copy.parent / "build"]
    done = subprocess.run([*command, "--", tests.part] if tests.part else command, cwd=copy,
                          env={**os.environ, **tests.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


def verdict(status, output):
    """Which tests failed; None if none did. A defect that does not build says nothing of the tests."""
    failed = re.findall(r"^test (?:\[\w+\] +)?(\S+) +\.\.\. FAILED", output, re.MULTILINE)
    if failed:
        return ", ".join(failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    if status and ("could not compile" in output or "custom build command" in output):
        raise SystemExit(f"error: the defect does not build\n{output[-2000:]}")
    teardown = re.search(r"^tear-down failed: (.*)", output, re.MULTILINE)
    return teardown[0] if teardown else "the test binary died" if status else None


def main(root, parts):
    root = Path(root)
    defects = [d for d in DEFECTS if not parts or any(part in d.what for part in parts)]
    copy = copy_of(root)
    # Of all of them: what no longer fits is found where only some are planted.
    for what, name, right, _, _ in DEFECTS:
        if right not in (copy / name).read_text():
            raise SystemExit(f"error: {name} no longer has the text of the defect `{what}`: {right}")
    for tests in {d.tests.key(): d.tests for d in defects}.values():
        status, output = test(copy, tests)
        if status or not re.search(r"test result: ok\. [1-9]", output):
            raise SystemExit(f"error: {tests.binary} {tests.part} fails without any defect\n{output[-2000:]}")
    missed = 0
    for what, name, right, wrong, tests in defects:
        path = copy / name
        text = path.read_text()
        path.write_text(text.replace(right, wrong, 1))
        caught = verdict(*test(copy, tests))
        path.write_text(text)
        missed += caught is None
        print(f"{what:<42} {caught or 'NOT SEEN'}", flush=True)
    print(f"{len(defects) - missed} passed, {missed} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
