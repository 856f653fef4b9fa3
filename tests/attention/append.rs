//! The append and its adjoint: every bit of the cache against copies on the CPU.

use backslang::kernels::attention::append::{self, AppendInputs, AppendPlan, Cache, DevicePlan};
use backslang::kernels::attention::{Geometry, Schedule};
use backslang::reference;
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, HostTensor};
use fastrand::Rng;

use crate::accuracy::fresh_seed;
use crate::common::compare::assert_same_bits;
use crate::common::fence::{Fences, assert_untouched};
use crate::common::gpu;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Sizes of an append; `position_dim` > 0 is MLA.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    dtype: Dtype,
    page_size: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    position_dim: usize,
}

/// Some of the tokens of a few sequences, in any order, on pages in any order. The first page is all sequences' own
/// first, and nothing is written to it.
fn schedule(rng: &mut Rng, page_size: usize, most: usize) -> (Schedule, usize) {
    let (sequences, width) = (4, 5);
    let pages = 1 + sequences * width + 3;
    let mut free = (1..pages as i128).collect::<Vec<_>>();
    rng.shuffle(&mut free);
    let mut schedule =
        Schedule { table_width: width, positions: Some(Vec::new()), ..Schedule::default() };
    let mut tokens = Vec::new();
    for sequence in 0..sequences {
        let length = rng.usize(0..=width * page_size);
        for logical in 0..width {
            let used = logical * page_size < length;
            schedule.block_table.push(match logical {
                _ if !used => rng.choice([-1, 0, 1, i128::MAX]).unwrap_or(-1),
                0 => 0,
                _ => free.pop().unwrap_or(0),
            });
        }
        schedule.sequence_lengths.push(length as i128);
        tokens.extend((page_size..length).map(|position| (sequence, position)));
    }
    rng.shuffle(&mut tokens);
    tokens.truncate(most);
    for (sequence, position) in tokens {
        schedule.sequence_ids.push(sequence as i128);
        schedule.positions.as_mut().unwrap().push(position as i128);
    }
    (schedule, pages)
}

fn bits(rng: &mut Rng, dtype: Dtype, shape: &[usize]) -> HostTensor {
    let count = shape.iter().product::<usize>() * dtype.size();
    let bytes = (0..count).map(|_| rng.u8(..)).collect::<Vec<_>>();
    HostTensor::from_bytes(dtype, shape, &bytes).unwrap()
}

/// Arrays of any bits, NaN among them.
fn inputs(rng: &mut Rng, sizes: &Sizes, queries: usize, pages: usize) -> AppendInputs<HostTensor> {
    let Sizes { dtype, page_size, kv_heads, key_dim, value_dim, position_dim } = *sizes;
    let mut new = |dim| bits(rng, dtype, &[queries, kv_heads, dim]);
    if position_dim > 0 {
        let (new_latent, new_k_position) = (new(key_dim), new(position_dim));
        let mut cache = |dim| bits(rng, dtype, &[pages, page_size, kv_heads, dim]);
        let (latent, k_position) = (cache(key_dim), cache(position_dim));
        return AppendInputs::Latent { new_latent, new_k_position, latent, k_position };
    }
    let (new_k, new_v) = (new(key_dim), new(value_dim));
    let mut cache = |dim| bits(rng, dtype, &[pages, page_size, kv_heads, dim]);
    AppendInputs::Separate { new_k, new_v, k: cache(key_dim), v: cache(value_dim) }
}

fn plan(runtime: &Runtime, shapes: &AppendInputs<HostTensor>, schedule: &Schedule) -> DevicePlan {
    let geometry = Geometry::of_append(&shapes.as_ref().map(|_, t| t.shape())).unwrap();
    DevicePlan::upload(runtime, AppendPlan::new(schedule, &geometry).unwrap()).unwrap()
}

/// Tensors with fences between them.
fn upload(
    runtime: &Runtime,
    fences: &mut Fences<'_>,
    host: &AppendInputs<HostTensor>,
) -> AppendInputs<Tensor> {
    fences.add();
    let upload = |name: &'static str, t: &HostTensor| {
        let tensor = runtime.upload(name, t)?;
        fences.add();
        Ok::<_, backslang::Error>(tensor)
    };
    host.as_ref().try_map(upload).unwrap()
}

fn assert_cache(found: &Cache<HostTensor>, expected: &Cache<HostTensor>, what: &str) {
    for ((name, found), (_, expected)) in found.named().into_iter().zip(expected.named()) {
        assert_same_bits(found, expected, &format!("{what}: {name}"));
    }
}

/// The append, in place, twice: the second writes the same bits again.
fn check(runtime: &Runtime, host: &AppendInputs<HostTensor>, schedule: &Schedule, what: &str) {
    let plan = plan(runtime, host, schedule);
    let mut fences = Fences::new(runtime);
    let inputs = upload(runtime, &mut fences, host);
    let expected = reference::attention::append(host, schedule).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    fences.fill(&mut recorder);
    append::record(&mut recorder, &inputs, &plan).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    for _ in 0..2 {
        let found = inputs.cache().try_map(|_, t| runtime.download(t)).unwrap();
        assert_cache(&found, &expected, what);
        let mut recorder = runtime.recorder().unwrap();
        append::record(&mut recorder, &inputs, &plan).unwrap();
        recorder.submit().unwrap().wait().unwrap();
    }
    fences.assert_whole();
    for ((_, tensor), (_, host)) in
        inputs.new_rows().named().into_iter().zip(host.new_rows().named())
    {
        assert_untouched(runtime, tensor, Some(host));
    }
    inputs.cache().named().iter().for_each(|(_, t)| assert_untouched(runtime, t, None));
}

/// The adjoint on poisoned targets; the gradients of the cache stay.
fn check_backward(
    runtime: &Runtime,
    host: &AppendInputs<HostTensor>,
    schedule: &Schedule,
    what: &str,
) {
    let plan = plan(runtime, host, schedule);
    let mut fences = Fences::new(runtime);
    let gradients = upload(runtime, &mut fences, host);
    let cache = host.cache().try_map(|_, t| Ok::<_, backslang::Error>(t.clone())).unwrap();
    let expected = reference::attention::append_backward(&cache, schedule).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    fences.fill(&mut recorder);
    for (_, target) in gradients.new_rows().named() {
        recorder.fill(target, u32::MAX).unwrap();
    }
    append::record_backward(&mut recorder, &gradients, &plan).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    fences.assert_whole();
    let found = gradients.new_rows().try_map(|_, t| runtime.download(t)).unwrap();
    assert_cache(&found, &expected, what);
    for ((_, tensor), (_, host)) in gradients.cache().named().into_iter().zip(cache.named()) {
        assert_untouched(runtime, tensor, Some(host));
    }
    gradients.new_rows().named().iter().for_each(|(_, t)| assert_untouched(runtime, t, None));
}

fn all_sizes() -> Vec<Sizes> {
    let mut all = Vec::new();
    for dtype in DTYPES {
        let sizes =
            Sizes { dtype, page_size: 16, kv_heads: 1, key_dim: 3, value_dim: 65, position_dim: 0 };
        all.push(sizes);
        all.push(Sizes { page_size: 1, key_dim: 1, value_dim: 64, ..sizes });
        all.push(Sizes { page_size: 5, kv_heads: 3, key_dim: 3, value_dim: 4, ..sizes });
        all.push(Sizes { page_size: 3, key_dim: 65, value_dim: 65, position_dim: 3, ..sizes });
        all.push(Sizes { page_size: 1, key_dim: 1, value_dim: 1, position_dim: 64, ..sizes });
    }
    all
}

pub(crate) fn appends_are_copies(runtime: &Runtime) {
    let seed = fresh_seed();
    let mut rng = Rng::with_seed(seed);
    for sizes in all_sizes() {
        for most in [0, 1, 2, 40, 1000] {
            let (schedule, pages) = schedule(&mut rng, sizes.page_size, most);
            let host = inputs(&mut rng, &sizes, schedule.sequence_ids.len(), pages);
            let what = format!("{sizes:?}, at most {most} rows, seed {seed}");
            check(runtime, &host, &schedule, &what);
            check_backward(runtime, &host, &schedule, &what);
        }
    }
}

/// With grids split into pieces and slices, and words behind each tensor.
pub(crate) fn split_appends(_: &Runtime) {
    let strained = gpu::open(|_| ()).unwrap();
    strained.split_grids(3);
    strained.slice_grids(5);
    strained.guard_tensors(64);
    appends_are_copies(&strained);
    strained.finish().unwrap();
}

/// Small bindings, so that new rows and caches are in several parts: slots of each, pairs of slots that odd rows share.
pub(crate) fn appends_in_parts(_: &Runtime) {
    if !gpu::has_parts() {
        return;
    }
    let strained = gpu::open(|_| ()).unwrap();
    let mut rng = Rng::with_seed(fresh_seed());
    for dtype in DTYPES {
        let sizes =
            Sizes { dtype, page_size: 40, kv_heads: 3, key_dim: 7, value_dim: 4, position_dim: 0 };
        let latent = Sizes { kv_heads: 1, key_dim: 12, value_dim: 12, position_dim: 9, ..sizes };
        for sizes in [sizes, latent] {
            let (schedule, pages) = schedule(&mut rng, sizes.page_size, 200);
            let host = inputs(&mut rng, &sizes, schedule.sequence_ids.len(), pages);
            strained.limit_bindings(4096 * dtype.size() as u64);
            strained.guard_tensors(64);
            let cache = strained.upload("cache", host.cache().named()[0].1).unwrap();
            assert!(cache.binding_elements().is_some(), "{sizes:?}");
            check(&strained, &host, &schedule, &format!("{sizes:?}"));
            check_backward(&strained, &host, &schedule, &format!("{sizes:?}"));
        }
    }
    strained.finish().unwrap();
}

/// From host arrays to host arrays, and <append(x), g> = <x, gather(g)> on a cache of zeros.
pub(crate) fn gather_is_the_adjoint(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for sizes in all_sizes() {
        let (schedule, pages) = schedule(&mut rng, sizes.page_size, 50);
        let mut number = |name: &str, t: HostTensor| {
            let normal = crate::common::random::tensor(&mut rng, t.shape()).to_f64();
            match name.starts_with("new") {
                true => HostTensor::from_f64(t.dtype(), &normal).unwrap(),
                false => HostTensor::zeros(t.dtype(), t.shape()),
            }
        };
        let queries = schedule.sequence_ids.len();
        let host = inputs(&mut Rng::with_seed(1), &sizes, queries, pages);
        let host = host.map(&mut number);
        let gradients = host.cache().try_map(|_, t| Ok::<_, backslang::Error>(t.clone())).unwrap();
        let gradients =
            gradients.try_map(|_, t| Ok::<_, backslang::Error>(number("new", t))).unwrap();
        let appended = append::run(runtime, &host, &schedule).unwrap().outputs;
        let gathered = append::run_backward(runtime, &gradients, &schedule).unwrap().outputs;
        let dot = |a: &HostTensor, b: &HostTensor| (a.to_f64() * b.to_f64()).sum();
        for i in 0..2 {
            let (left, right) = (
                dot(appended.named()[i].1, gradients.named()[i].1),
                dot(host.new_rows().named()[i].1, gathered.named()[i].1),
            );
            assert!(
                (left - right).abs() <= 1e-9 * left.abs().max(1.0),
                "{sizes:?}: {left} {right}"
            );
        }
    }
}

/// What reads the cache waits for the append; keys and values do not wait for each other.
pub(crate) fn readers_wait_for_the_append(runtime: &Runtime) {
    let sizes = all_sizes()[0];
    let mut rng = Rng::with_seed(5);
    let (schedule, pages) = schedule(&mut rng, sizes.page_size, 20);
    let host = inputs(&mut rng, &sizes, schedule.sequence_ids.len(), pages);
    let plan = plan(runtime, &host, &schedule);
    let inputs = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
    let cache = inputs.cache().try_map(|_, t| Ok::<_, backslang::Error>(t.clone())).unwrap();
    let back = append::allocate_backward(runtime, cache, plan.plan().queries()).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    append::record(&mut recorder, &inputs, &plan).unwrap();
    assert_eq!(recorder.barriers(), 0);
    append::record_backward(&mut recorder, &back, &plan).unwrap();
    assert_eq!(recorder.barriers(), 1);
    recorder.submit().unwrap().wait().unwrap();
    // What was written is what is gathered.
    for ((name, back), (_, new)) in back.new_rows().named().into_iter().zip(host.new_rows().named())
    {
        assert_same_bits(&runtime.download(back).unwrap(), new, name);
    }
}

/// New rows, and their gradients, as parts of packed rows: the same bits as from tensors of their own, and what lies
/// between stays.
pub(crate) fn appends_from_packed_rows(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for dtype in DTYPES {
        for (dim, before, after) in [(6, 10, 4), (3, 5, 2), (3, 3, 0)] {
            let sizes = Sizes {
                dtype,
                page_size: 4,
                kv_heads: 2,
                key_dim: dim,
                value_dim: 7,
                position_dim: 0,
            };
            let (schedule, pages) = schedule(&mut rng, sizes.page_size, 30);
            let queries = schedule.sequence_ids.len();
            let host = inputs(&mut rng, &sizes, queries, pages);
            let plan = plan(runtime, &host, &schedule);
            let widths = [2 * dim, 2 * sizes.value_dim];
            let width = before + widths[0] + widths[1] + after;
            let packed = bits(&mut rng, dtype, &[queries, width]);
            let packed = runtime.upload("packed", &packed).unwrap();
            let part = |first: usize, dim: usize| {
                let part = packed.narrow(1, first..first + 2 * dim).unwrap();
                part.reshape(&[queries, 2, dim]).unwrap()
            };
            let (new_k, new_v) = (part(before, dim), part(before + widths[0], sizes.value_dim));
            let [new_k_host, new_v_host] = [&new_k, &new_v].map(|t| runtime.download(t).unwrap());
            let parts = host.cache();
            let [k, v] = parts.named().map(|(name, t)| (runtime.upload(name, t).unwrap(), *t));
            let views = AppendInputs::Separate { new_k, new_v, k: k.0, v: v.0 };
            let host = AppendInputs::Separate {
                new_k: new_k_host,
                new_v: new_v_host,
                k: k.1.clone(),
                v: v.1.clone(),
            };
            let mut recorder = runtime.recorder().unwrap();
            append::record(&mut recorder, &views, &plan).unwrap();
            recorder.submit().unwrap().wait().unwrap();
            let found = views.cache().try_map(|_, t| runtime.download(t)).unwrap();
            let expected = reference::attention::append(&host, &schedule).unwrap();
            assert_cache(&found, &expected, &format!("{sizes:?} at {before}"));

            // The gradients of the cache as it is now are the new rows: nothing of the packed rows changes.
            let poison = |t: &Tensor| runtime.write(t, &vec![0x5a; t.bytes() as usize]).unwrap();
            let old = runtime.download(&packed).unwrap();
            let mut recorder = runtime.recorder().unwrap();
            match append::record_backward(&mut recorder, &views, &plan) {
                Ok(()) => {
                    views.new_rows().named().iter().for_each(|(_, t)| poison(t));
                    recorder.submit().unwrap().wait().unwrap();
                    assert_same_bits(&runtime.download(&packed).unwrap(), &old, "packed rows");
                }
                Err(error) => {
                    assert!(dtype.is_half() && (width % 2 == 1 || before % 2 == 1), "{error}");
                    assert_eq!(error.kind(), "layout");
                    assert!(error.to_string().contains("`new_k_gradient`"), "{error}");
                }
            }
        }
    }
}

/// Rows of an odd number of halves in the middle of a tensor, without gaps: both ends share words with others.
pub(crate) fn odd_rows_of_gradients_leave_their_neighbours(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let sizes =
            Sizes { dtype, page_size: 4, kv_heads: 1, key_dim: 3, value_dim: 5, position_dim: 0 };
        let (schedule, pages) = schedule(&mut rng, sizes.page_size, 12);
        let queries = schedule.sequence_ids.len();
        let host = inputs(&mut rng, &sizes, queries, pages);
        let plan = plan(runtime, &host, &schedule);
        for (before, after) in [(1, 1), (1, 2), (2, 1), (3, 0)] {
            let wholes = [3, 5].map(|dim| {
                let whole = bits(&mut rng, dtype, &[before + queries + after, 1, dim]);
                (runtime.upload("whole", &whole).unwrap(), whole)
            });
            let [new_k, new_v] =
                [0, 1].map(|i| wholes[i].0.narrow(0, before..before + queries).unwrap());
            let [k, v] = host.cache().named().map(|(name, t)| runtime.upload(name, t).unwrap());
            let gradients = AppendInputs::Separate { new_k, new_v, k, v };
            let mut recorder = runtime.recorder().unwrap();
            append::record_backward(&mut recorder, &gradients, &plan).unwrap();
            recorder.submit().unwrap().wait().unwrap();
            let cache = host.cache().try_map(|_, t| Ok::<_, backslang::Error>(t.clone())).unwrap();
            let expected = reference::attention::append_backward(&cache, &schedule).unwrap();
            for ((tensor, mut whole), (name, expected)) in wholes.into_iter().zip(expected.named())
            {
                let row = whole.shape()[2] * 2;
                whole.bytes_mut()[before * row..][..queries * row]
                    .copy_from_slice(expected.bytes());
                assert_same_bits(&runtime.download(&tensor).unwrap(), &whole, name);
            }
        }
    }
}

/// An odd number of halves ends within a word: the other half of it is another's.
pub(crate) fn odd_caches_leave_what_is_beside(runtime: &Runtime) {
    let mut rng = Rng::with_seed(fresh_seed());
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let schedule = Schedule {
            block_table: vec![2, 0, 1],
            table_width: 3,
            sequence_lengths: vec![3],
            sequence_ids: vec![0, 0],
            positions: Some(vec![0, 2]),
        };
        let sizes =
            Sizes { dtype, page_size: 1, kv_heads: 1, key_dim: 3, value_dim: 1, position_dim: 0 };
        let host = inputs(&mut rng, &sizes, 2, 3);
        let plan = plan(runtime, &host, &schedule);
        let wholes = [3, 1].map(|dim| bits(&mut rng, dtype, &[4, 1, 1, dim]));
        let tensors = wholes.each_ref().map(|t| runtime.upload("whole", t).unwrap());
        let [k, v] = tensors.each_ref().map(|t| t.narrow(0, 0..3).unwrap());
        let [new_k, new_v] =
            host.new_rows().named().map(|(name, t)| runtime.upload(name, t).unwrap());
        let views = AppendInputs::Separate { new_k, new_v, k, v };
        let mut recorder = runtime.recorder().unwrap();
        append::record(&mut recorder, &views, &plan).unwrap();
        recorder.submit().unwrap().wait().unwrap();
        for ((tensor, mut whole), (name, new)) in
            tensors.iter().zip(wholes).zip(host.new_rows().named())
        {
            let row = new.bytes().len() / 2;
            for (i, page) in [2, 1].into_iter().enumerate() {
                whole.bytes_mut()[page * row..][..row]
                    .copy_from_slice(&new.bytes()[i * row..][..row]);
            }
            assert_same_bits(&runtime.download(tensor).unwrap(), &whole, name);
        }
    }
}
