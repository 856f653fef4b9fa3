//! Gradients that are added to what their tensors hold.

use backslang::kernels::mamba3::preprocess::{BackwardInputs, Geometry, Parameters, dtype_of};
use backslang::kernels::mamba3::preprocess_backward::{self, Accumulate, Onto};
use backslang::runtime::Runtime;
use backslang::{Dtype, Error, HostTensor, reference};

use crate::common::compare::{assert_close, assert_same_bits};
use crate::common::random;
use crate::support::{cancellation, geometry, run_poisoned};

const DTYPES: [(Dtype, f64); 3] = [(Dtype::F32, 2e-6), (Dtype::F16, 1e-3), (Dtype::Bf16, 8e-3)];

/// Widths that are whole words of halves, and others.
fn sizes() -> [Geometry; 2] {
    [geometry(150, 70, 2, 38, 34, 36), geometry(7, 9, 2, 5, 3, 7)]
}

fn inputs(sizes: &Geometry, dtype: Dtype) -> BackwardInputs<HostTensor> {
    random::mamba3(sizes, fastrand::u64(..))
        .map(|name, t| HostTensor::from_f64(dtype_of(name, dtype), &t.to_f64()).unwrap())
}

/// Old values of both outputs.
fn old(sizes: &Geometry, dtype: Dtype) -> Onto {
    let mut rng = fastrand::Rng::new();
    let mut make = |dtype, shape: &[usize]| {
        HostTensor::from_f64(dtype, &random::tensor(&mut rng, shape).to_f64()).unwrap()
    };
    let shapes = sizes.backward_outputs();
    Onto {
        projected_gradient: Some(make(dtype, &shapes.projected_gradient)),
        dt_bias_gradient: Some(make(Dtype::F32, &shapes.dt_bias_gradient)),
    }
}

/// What the host makes of an old and a new f32 array.
fn sum(old: &HostTensor, new: &HostTensor) -> HostTensor {
    let pairs = old.as_f32().unwrap().iter().zip(new.as_f32().unwrap());
    let sums = pairs.map(|(old, new)| if *new == 0.0 { *old } else { old + new });
    HostTensor::from_f32(new.shape(), sums.collect()).unwrap()
}

/// f32: the bits of adding on the host. All types: the float64 sum, rounded. What is not listed is as without.
pub(crate) fn sums_with_old_values(runtime: &Runtime) {
    let parameters = Parameters::default();
    for (dtype, tolerance) in DTYPES {
        for sizes in sizes() {
            let (host, all) = (inputs(&sizes, dtype), old(&sizes, dtype));
            let plain = run_poisoned(runtime, &host, &parameters);
            let scales = cancellation(&host, &parameters);
            let exact = host.as_ref().map(|_, t| t.to_f64());
            let exact = reference::mamba3::preprocess_backward(&exact, &parameters).unwrap();
            let (packed, dt_bias) =
                (all.projected_gradient.clone().unwrap(), all.dt_bias_gradient.clone().unwrap());
            for onto in [
                all.clone(),
                Onto { projected_gradient: None, ..all.clone() },
                Onto { dt_bias_gradient: None, ..all.clone() },
            ] {
                let found = preprocess_backward::run_onto(runtime, &host, &parameters, &onto);
                let found = found.unwrap().outputs;
                let what = format!("{dtype}, {sizes:?}, {:?}", onto.accumulate());
                assert_same_bits(&found.dt_bias_partial, &plain.dt_bias_partial, &what);
                let expected = match onto.dt_bias_gradient {
                    Some(_) => sum(&dt_bias, &plain.dt_bias_gradient),
                    None => plain.dt_bias_gradient.clone(),
                };
                assert_same_bits(&found.dt_bias_gradient, &expected, &what);
                let found = &found.projected_gradient;
                if onto.projected_gradient.is_none() {
                    assert_same_bits(found, &plain.projected_gradient, &what);
                    continue;
                }
                if dtype == Dtype::F32 {
                    assert_same_bits(found, &sum(&packed, &plain.projected_gradient), &what);
                }
                let expected = packed.to_f64() + &exact.projected_gradient;
                assert_close(found, &expected, tolerance * scales.projected_gradient, &what);
            }
        }
    }
}

/// Without upstream gradients all is 0: no kernel touches a bit.
pub(crate) fn zeros_are_added_to_any_bits(runtime: &Runtime) {
    let mut rng = fastrand::Rng::with_seed(4);
    for (dtype, _) in DTYPES {
        for sizes in sizes() {
            let host = inputs(&sizes, dtype).map(|name, t| match name {
                "projected" | "dt_bias" => t,
                _ => HostTensor::zeros(t.dtype(), t.shape()),
            });
            let shapes = sizes.backward_outputs();
            let packed = random::signaling_nans(&mut rng, dtype, &shapes.projected_gradient);
            let dt_bias = random::signaling_nans(&mut rng, Dtype::F32, &shapes.dt_bias_gradient);
            let onto = Onto {
                projected_gradient: Some(packed.clone()),
                dt_bias_gradient: Some(dt_bias.clone()),
            };
            let found =
                preprocess_backward::run_onto(runtime, &host, &Parameters::default(), &onto);
            let found = found.unwrap().outputs;
            let what = format!("{dtype}, {sizes:?}");
            assert_same_bits(&found.projected_gradient, &packed, &what);
            assert_same_bits(&found.dt_bias_gradient, &dt_bias, &what);
        }
    }
}

/// What lies in its slice already is not added to itself; the rest is as without views.
pub(crate) fn sums_in_place(runtime: &Runtime) {
    let parameters = Parameters::default();
    for (dtype, _) in DTYPES {
        for sizes in sizes() {
            let (host, onto) = (inputs(&sizes, dtype), old(&sizes, dtype));
            let outputs = preprocess_backward::run_onto(runtime, &host, &parameters, &onto);
            let summed = outputs.unwrap().outputs.projected_gradient;
            let outputs = preprocess_backward::allocate(runtime, &sizes, dtype).unwrap();
            let packed = &outputs.projected_gradient;
            runtime.write(packed, onto.projected_gradient.unwrap().bytes()).unwrap();
            let slices = sizes.views(packed).unwrap();
            let mut given = host.as_ref().try_map(|name, t| runtime.upload(name, t)).unwrap();
            runtime.write(&slices.z, host.z_gradient.bytes()).unwrap();
            runtime.write(&slices.angle, host.angle_gradient.bytes()).unwrap();
            given.z_gradient = slices.z.clone();
            given.angle_gradient = slices.angle.clone();
            let mut recorder = runtime.recorder().unwrap();
            let accumulate = Accumulate { projected_gradient: true, dt_bias_gradient: false };
            preprocess_backward::record_onto(
                &mut recorder,
                &given,
                &parameters,
                accumulate,
                &outputs,
            )
            .unwrap();
            recorder.submit().unwrap().wait().unwrap();
            let found = runtime.download(packed).unwrap();
            let width = dtype.size() * sizes.projected_width();
            let columns = sizes.slices();
            let rows = found.bytes().chunks_exact(width).zip(summed.bytes().chunks_exact(width));
            for (row, (found, summed)) in rows.enumerate() {
                let mut expected = summed.to_vec();
                for (slice, host) in
                    [(&columns.z, &host.z_gradient), (&columns.angle, &host.angle_gradient)]
                {
                    let n = dtype.size() * slice.len();
                    expected[dtype.size() * slice.start..][..n]
                        .copy_from_slice(&host.bytes()[row * n..][..n]);
                }
                assert_eq!(found, expected, "{dtype}, {sizes:?}, row {row}");
            }
        }
    }
}

/// Old values of another shape or type.
pub(crate) fn wrong_old_values_are_refused(runtime: &Runtime) {
    let sizes = &sizes()[1];
    let (host, onto) = (inputs(sizes, Dtype::F16), old(sizes, Dtype::F32));
    let run = |onto| {
        preprocess_backward::run_onto(runtime, &host, &Parameters::default(), onto).map(drop)
    };
    let error = run(&onto).unwrap_err();
    assert!(matches!(&error, Error::Dtype { array, .. } if array == "projected_gradient"));
    let dt_bias_gradient = Some(HostTensor::from_f32(&[2], vec![0.0; 2]).unwrap());
    let error = run(&Onto { projected_gradient: None, dt_bias_gradient }).unwrap_err();
    assert!(matches!(error, Error::Shape { array: "dt_bias_gradient", .. }), "{error}");
}
