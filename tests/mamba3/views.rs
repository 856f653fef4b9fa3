//! Views: rows that lie apart, and what passes through in its place already.

use backslang::kernels::Target;
use backslang::kernels::mamba3::preprocess::{
    BackwardInputs, ForwardInputs, Geometry, Parameters, dtype_of,
};
use backslang::kernels::mamba3::{preprocess_backward, preprocess_forward};
use backslang::runtime::{Runtime, Tensor};
use backslang::{Dtype, Error, HostTensor};

use crate::common::compare::assert_same_bits;
use crate::common::random;
use crate::forward::support as forward;
use crate::support::run_poisoned;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

fn sizes(inner_size: usize, state_size: usize, heads: usize, rope_angles: usize) -> Geometry {
    let leading = vec![2, 3];
    Geometry { leading, rows: 6, inner_size, bc_rows: 2, state_size, heads, rope_angles }
}

fn even() -> Geometry {
    sizes(70, 38, 34, 36)
}

fn odd() -> Geometry {
    sizes(9, 5, 3, 7)
}

fn inputs(sizes: &Geometry, dtype: Dtype) -> BackwardInputs<HostTensor> {
    random::mamba3(sizes, fastrand::u64(..))
        .map(|name, t| HostTensor::from_f64(dtype_of(name, dtype), &t.to_f64()).unwrap())
}

/// Columns of a wider array that is full of NaN.
struct Apart {
    parent: Tensor,
    view: Tensor,
    /// Elements before each row, and the row's.
    columns: [usize; 2],
}

impl Apart {
    fn new(
        runtime: &Runtime,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        [before, after]: [usize; 2],
    ) -> Self {
        let state = name.starts_with("bh") || name.starts_with("ch");
        let (leading, row) = shape.split_at(shape.len() - if state { 2 } else { 1 });
        let (rows, width) = (leading.iter().product(), row.iter().product::<usize>());
        let parent = runtime.tensor(name, dtype, &[rows, before + width + after]).unwrap();
        let mut recorder = runtime.recorder().unwrap();
        recorder.fill(&parent, u32::MAX).unwrap();
        recorder.submit().unwrap().wait().unwrap();
        let view = parent.narrow(1, before..before + width).unwrap().reshape(shape).unwrap();
        Self { parent, view, columns: [before, width] }
    }

    fn of(runtime: &Runtime, name: &str, host: &HostTensor, around: [usize; 2]) -> Self {
        let apart = Self::new(runtime, name, host.dtype(), host.shape(), around);
        runtime.write(&apart.view, host.bytes()).unwrap();
        apart
    }

    /// The view's contents, and that nothing is written beside it.
    fn contents(&self, runtime: &Runtime) -> HostTensor {
        let size = self.parent.dtype().size();
        let [before, width] = self.columns.map(|n| n * size);
        let parent = runtime.download(&self.parent).unwrap();
        for row in parent.bytes().chunks_exact(size * self.parent.shape()[1]) {
            let beside = row[..before].iter().chain(&row[before + width..]);
            assert!(beside.copied().all(|byte| byte == 0xff), "written beside {:?}", self.view);
        }
        runtime.download(&self.view).unwrap()
    }
}

/// Inputs at places of any kind, and outputs of whole words: the bits of arrays without gaps.
pub(crate) fn backward_rows_apart(runtime: &Runtime) {
    for dtype in DTYPES {
        let (sizes, parameters) = (even(), Parameters::default());
        let host = inputs(&sizes, dtype);
        let expected = run_poisoned(runtime, &host, &parameters);
        let given = host.as_ref().map(|name, t| Apart::of(runtime, name, t, [3, 2]));
        let outputs = sizes
            .backward_outputs()
            .map(|name, shape| Apart::new(runtime, name, dtype_of(name, dtype), &shape, [4, 2]));
        let mut recorder = runtime.recorder().unwrap();
        let (views, targets) = (given.as_ref().map(view), outputs.as_ref().map(view));
        preprocess_backward::record(&mut recorder, &views, &parameters, &targets).unwrap();
        recorder.submit().unwrap().wait().unwrap();
        for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
            assert_same_bits(&found.contents(runtime), expected, &format!("{dtype}: {name}"));
        }
        for ((name, given), (_, host)) in given.named().zip(host.named()) {
            assert_same_bits(&given.contents(runtime), host, name);
        }
    }
}

/// Sizes that dense arrays have all in quads of words, at places that are such and others: all share the bits.
pub(crate) fn alignments_share_bits(runtime: &Runtime) {
    let (sizes, parameters) = (sizes(64, 32, 8, 8), Parameters::default());
    let widths = forward::widths(&sizes);
    for dtype in DTYPES {
        assert!(whole_quads(&sizes, dtype) && !whole_quads(&even(), dtype));
        let host = inputs(&sizes, dtype);
        let expected = run_poisoned(runtime, &host, &parameters);
        let packed =
            ForwardInputs { projected: host.projected.clone(), dt_bias: host.dt_bias.clone() };
        let passed = forward::run_poisoned(runtime, &packed, &widths, &parameters);
        for (before, after) in [([16, 8], [8, 8]), ([4, 4], [6, 2]), ([7, 2], [4, 4])] {
            let what = |name| format!("{dtype} from {before:?} to {after:?}: {name}");
            let new = |name: &'static str, shape: &[usize]| {
                Apart::new(runtime, name, dtype_of(name, dtype), shape, after)
            };
            let given = host.as_ref().map(|name, t| Apart::of(runtime, name, t, before).view);
            let outputs = sizes.backward_outputs().map(|name, shape| new(name, &shape));
            let made = sizes.forward_outputs().map(|name, shape| new(name, &shape));
            let (targets, places) = (outputs.as_ref().map(view), made.as_ref().map(view));
            let packed = ForwardInputs {
                projected: given.projected.clone(),
                dt_bias: given.dt_bias.clone(),
            };
            let mut recorder = runtime.recorder().unwrap();
            preprocess_backward::record(&mut recorder, &given, &parameters, &targets).unwrap();
            preprocess_forward::record(&mut recorder, &packed, &widths, &parameters, &places)
                .unwrap();
            recorder.submit().unwrap().wait().unwrap();
            for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
                assert_same_bits(&found.contents(runtime), expected, &what(name));
            }
            for ((name, found), (_, expected)) in made.named().zip(passed.named()) {
                assert_same_bits(&found.contents(runtime), expected, &what(name));
            }
        }
    }
}

/// Whether a backward of arrays without gaps copies by quads.
fn whole_quads(sizes: &Geometry, dtype: Dtype) -> bool {
    let none = preprocess_backward::Accumulate::default();
    let all = preprocess_backward::launches(sizes, dtype, none, Target::TYPICAL).unwrap();
    let names = all[0].kernel().constants.iter().map(|constant| constant.name);
    let mut values = names.zip(all[0].constants());
    values.find(|(name, _)| *name == "whole_quads").is_some_and(|(_, value)| *value == 1)
}

fn view(_: &'static str, apart: &Apart) -> Tensor {
    apart.view.clone()
}

/// Rows of halves of an odd width: inputs may lie anywhere, an output must have no gaps.
pub(crate) fn odd_rows_apart(runtime: &Runtime) {
    let (sizes, parameters) = (odd(), Parameters::default());
    let host = inputs(&sizes, Dtype::F16);
    let expected = run_poisoned(runtime, &host, &parameters);
    let given = host.as_ref().map(|name, t| Apart::of(runtime, name, t, [5, 2]).view);
    let mut outputs = preprocess_backward::allocate(runtime, &sizes, Dtype::F16).unwrap();
    let mut recorder = runtime.recorder().unwrap();
    preprocess_backward::record(&mut recorder, &given, &parameters, &outputs).unwrap();
    recorder.submit().unwrap().wait().unwrap();
    for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
        assert_same_bits(&runtime.download(found).unwrap(), expected, name);
    }
    let shape = outputs.projected_gradient.shape().to_vec();
    let apart = Apart::new(runtime, "projected_gradient", Dtype::F16, &shape, [2, 2]);
    outputs.projected_gradient = apart.view.clone();
    let mut recorder = runtime.recorder().unwrap();
    let error = preprocess_backward::record(&mut recorder, &given, &parameters, &outputs);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Layout { array: "projected_gradient", .. }), "{error}");

    let given = ForwardInputs { projected: given.projected, dt_bias: given.dt_bias };
    let widths = forward::widths(&sizes);
    let mut outputs = preprocess_forward::allocate(runtime, &sizes, Dtype::F16).unwrap();
    outputs.angle = Apart::new(runtime, "angle", Dtype::F16, &[2, 3, 7], [2, 3]).view;
    let error = preprocess_forward::record(&mut recorder, &given, &widths, &parameters, &outputs);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Layout { array: "angle", .. }), "{error}");
    // Columns of columns.
    let table = runtime.tensor("x", Dtype::F16, &[2, 3, 20, 2]).unwrap();
    outputs.x =
        table.narrow(3, 0..1).unwrap().narrow(2, 0..9).unwrap().reshape(&[2, 3, 9]).unwrap();
    outputs.angle = runtime.tensor("angle", Dtype::F16, &[2, 3, 7]).unwrap();
    let error = preprocess_forward::record(&mut recorder, &given, &widths, &parameters, &outputs);
    assert!(matches!(error, Err(Error::Layout { array: "x", .. })), "{error:?}");
}

/// What passes through and lies in its slice: the bits of what is copied, in whole words and packed afterwards.
pub(crate) fn backward_in_place(runtime: &Runtime) {
    for dtype in DTYPES {
        for sizes in [even(), odd()] {
            let (host, parameters) = (inputs(&sizes, dtype), Parameters::default());
            let expected = run_poisoned(runtime, &host, &parameters);
            for apart in [false, true] {
                if apart && sizes == odd() && dtype.is_half() {
                    continue;
                }
                let outputs = preprocess_backward::allocate(runtime, &sizes, dtype).unwrap();
                let shape = outputs.projected_gradient.shape().to_vec();
                let wider = Apart::new(runtime, "projected_gradient", dtype, &shape, [2, 2]);
                let outputs = match apart {
                    true => backslang::kernels::mamba3::preprocess::BackwardOutputs {
                        projected_gradient: wider.view.clone(),
                        ..outputs
                    },
                    false => outputs,
                };
                poison(runtime, &outputs.projected_gradient);
                let slices = sizes.views(&outputs.projected_gradient).unwrap();
                let given = host.as_ref().map(|name, t| {
                    let slice = match name {
                        "z_gradient" => &slices.z,
                        "x_gradient" => &slices.x,
                        "trap_gradient" if dtype == Dtype::F32 => &slices.trap,
                        "angle_gradient" => &slices.angle,
                        _ => return runtime.upload(name, t).unwrap(),
                    };
                    runtime.write(slice, t.bytes()).unwrap();
                    slice.clone()
                });
                let mut recorder = runtime.recorder().unwrap();
                preprocess_backward::record(&mut recorder, &given, &parameters, &outputs).unwrap();
                recorder.submit().unwrap().wait().unwrap();
                for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
                    let what = format!("{dtype}, {sizes:?}, apart {apart}: {name}");
                    assert_same_bits(&runtime.download(found).unwrap(), expected, &what);
                }
            }
        }
    }
}

fn poison(runtime: &Runtime, tensor: &Tensor) {
    runtime.write(tensor, &vec![0xff; tensor.bytes() as usize]).unwrap();
}

/// Outputs that are slices of the packed rows are not written, all others are as without views.
pub(crate) fn forward_in_place(runtime: &Runtime) {
    for dtype in DTYPES {
        for sizes in [even(), odd()] {
            let (host, widths) = (forward::inputs(&sizes, dtype, 21), forward::widths(&sizes));
            let parameters = Parameters::default();
            let expected = forward::run_poisoned(runtime, &host, &widths, &parameters);
            for around in [[0, 0], [5, 2]] {
                let projected = Apart::of(runtime, "projected", &host.projected, around);
                let dt_bias = runtime.upload("dt_bias", &host.dt_bias).unwrap();
                let given = ForwardInputs { projected: projected.view.clone(), dt_bias };
                let outputs =
                    preprocess_forward::allocate_views(runtime, &sizes, &given.projected).unwrap();
                let mut recorder = runtime.recorder().unwrap();
                preprocess_forward::record(&mut recorder, &given, &widths, &parameters, &outputs)
                    .unwrap();
                recorder.submit().unwrap().wait().unwrap();
                for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
                    let what = format!("{dtype}, {sizes:?} within {around:?}: {name}");
                    assert_same_bits(&runtime.download(found).unwrap(), expected, &what);
                }
                assert_same_bits(&projected.contents(runtime), &host.projected, "projected");
            }
        }
    }
}

pub(crate) fn forward_rows_apart(runtime: &Runtime) {
    for dtype in DTYPES {
        let (sizes, parameters) = (even(), Parameters::default());
        let (host, widths) = (forward::inputs(&sizes, dtype, 22), forward::widths(&sizes));
        let expected = forward::run_poisoned(runtime, &host, &widths, &parameters);
        let given = host.as_ref().map(|name, t| Apart::of(runtime, name, t, [3, 2]));
        let outputs = sizes
            .forward_outputs()
            .map(|name, shape| Apart::new(runtime, name, dtype_of(name, dtype), &shape, [4, 2]));
        let mut recorder = runtime.recorder().unwrap();
        let (views, targets) = (given.as_ref().map(view), outputs.as_ref().map(view));
        preprocess_forward::record(&mut recorder, &views, &widths, &parameters, &targets).unwrap();
        recorder.submit().unwrap().wait().unwrap();
        for ((name, found), (_, expected)) in outputs.named().zip(expected.named()) {
            assert_same_bits(&found.contents(runtime), expected, &format!("{dtype}: {name}"));
        }
    }
}
