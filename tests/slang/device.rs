//! What is computed, and what a device refuses.

use backslang::runtime::{Runtime, Tensor};
use backslang::slang::{Call, UserKernel, Value};
use backslang::{Dtype, Error, HostTensor, Result};

use crate::{SCALE, assert_has, compile};

const COUNT: usize = 300;

/// The input, and room for the output.
fn tensors(runtime: &Runtime) -> [Tensor; 2] {
    let values = (0..COUNT).map(|i| i as f32 - 7.5).collect();
    let x = runtime.upload("x", &HostTensor::from_f32(&[COUNT], values).unwrap()).unwrap();
    [x, runtime.tensor("y", Dtype::F32, &[COUNT]).unwrap()]
}

fn bound<'k>(kernel: &'k UserKernel, [x, y]: &[Tensor; 2]) -> Call<'k> {
    let mut call = kernel.call();
    call.read("x", x).unwrap().write("y", y).unwrap();
    call.set("count", Value::U32(COUNT as u32)).unwrap().set("factor", Value::F32(3.0)).unwrap();
    call
}

fn record(runtime: &Runtime, call: &Call<'_>, groups: [usize; 2]) -> Result<()> {
    let mut recorder = runtime.recorder()?;
    // SAFETY: every kernel here stays below `count`, which is that of the tensors.
    unsafe { call.record(&mut recorder, groups) }?;
    let timings = recorder.submit()?.timings()?;
    assert!(timings.iter().all(|timing| timing.kernel == call.kernel().name()));
    Ok(())
}

fn assert_scaled(runtime: &Runtime, y: &Tensor, factor: f32) {
    let found = runtime.download(y).unwrap();
    let expected: Vec<_> = (0..COUNT).map(|i| factor * (i as f32 - 7.5)).collect();
    assert_eq!(found.as_f32().unwrap(), expected);
}

/// Under several values of its constants, from a call that outlives none of its tensors.
pub(crate) fn donor(runtime: &Runtime) {
    let kernel = compile(SCALE).unwrap();
    let tensors = tensors(runtime);
    for (size, doubled) in [(32, false), (64, true), (7, true)] {
        let mut call = bound(&kernel, &tensors);
        call.set("size", Value::U32(size)).unwrap().set("doubled", Value::Bool(doubled)).unwrap();
        record(runtime, &call, [COUNT.div_ceil(size as usize), 1]).unwrap();
        assert_scaled(runtime, &tensors[1], if doubled { 6.0 } else { 3.0 });
    }
    // The kernel may go while its call is still recorded only.
    let mut recorder = runtime.recorder().unwrap();
    let other = compile(SCALE).unwrap();
    // SAFETY: as above.
    unsafe { bound(&other, &tensors).record(&mut recorder, [COUNT.div_ceil(32), 1]) }.unwrap();
    drop(other);
    record(runtime, &bound(&compile(SCALE).unwrap(), &tensors), [1, 1]).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    assert_scaled(runtime, &tensors[1], 3.0);
}

pub(crate) fn split_grids(runtime: &Runtime) {
    let tensors = tensors(runtime);
    let kernel = compile(SCALE).unwrap();
    let without = SCALE.replace("uint first_group_x;", "").replace("uint first_group_y;", "");
    let without = compile(&without.replace("push.first_group_x + ", "")).unwrap();
    let groups = [COUNT.div_ceil(32), 1];
    record(runtime, &bound(&without, &tensors), groups).unwrap();
    assert_scaled(runtime, &tensors[1], 3.0);
    runtime.write(&tensors[1], &[0; 4 * COUNT]).unwrap();
    runtime.split_grids(3);
    let whole = record(runtime, &bound(&kernel, &tensors), groups);
    let refused = record(runtime, &bound(&without, &tensors), groups);
    runtime.split_grids(0);
    whole.unwrap();
    assert_scaled(runtime, &tensors[1], 3.0);
    assert_has(&refused.unwrap_err().to_string(), &["first_group_x", "`scale`"]);
}

pub(crate) fn lanes(runtime: &Runtime) {
    let text = SCALE.replace("[[vk::constant_id(1)]] const uint size = 32;", "import subgroup;");
    let kernel = compile(&text.replace("size", "lanes")).unwrap();
    assert_eq!(kernel.values(), ["count", "factor", "doubled"]);
    let tensors = tensors(runtime);
    let call = bound(&kernel, &tensors);
    record(runtime, &call, [COUNT.div_ceil(runtime.lanes() as usize), 1]).unwrap();
    assert_scaled(runtime, &tensors[1], 3.0);
    let fixed = call.clone().set("lanes", Value::U32(8)).map(drop).unwrap_err().to_string();
    assert_has(&fixed, &["`lanes`", "filled in"]);
}

pub(crate) fn capabilities(runtime: &Runtime) {
    let tensors = tensors(runtime);
    for (expression, names) in [
        ("float(double(push.factor))", ["Float64"]),
        ("float(half(push.factor))", ["Float16"]),
        ("push.factor * float(WaveActiveBallot(true).x)", ["GroupNonUniformBallot"]),
    ] {
        let kernel = compile(&SCALE.replace("push.factor", expression)).unwrap();
        let refused = record(runtime, &bound(&kernel, &tensors), [1, 1]).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert_has(&refused.to_string(), &[&["kernel `scale`"], &names[..]].concat());
    }
    let large = compile(&SCALE.replace("numthreads(size", "numthreads(1 << 20")).unwrap();
    let refused = record(runtime, &bound(&large, &tensors), [1, 1]).unwrap_err().to_string();
    assert_has(&refused, &["kernel `scale`", "1048576"]);
}

pub(crate) fn tensors_are_held(runtime: &Runtime) {
    let kernel = compile(SCALE).unwrap();
    let [x, y] = tensors(runtime);
    let mut call = kernel.call();
    call.set("count", Value::U32(1)).unwrap().set("factor", Value::F32(1.0)).unwrap();
    let message = |result: Result<()>| result.unwrap_err().to_string();
    assert_has(&message(record(runtime, &call, [1, 1])), &["not bound: x, y"]);
    assert_has(&message(call.read("xx", &x).map(drop)), &["tensor `xx`", "x, y"]);
    let view = x.narrow(0, 4..8).unwrap();
    assert_has(&message(call.read("x", &view).map(drop)), &["whole tensor"]);
    call.read("x", &y).unwrap().write("y", &y).unwrap();
    assert_has(&message(record(runtime, &call, [1, 1])), &["apart"]);
}
