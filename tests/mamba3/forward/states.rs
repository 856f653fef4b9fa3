//! State rows of B and C, and what reaches what.

use backslang::Dtype;
use backslang::kernels::mamba3::preprocess::Parameters;
use backslang::runtime::Runtime;

use super::support::{check, inputs, run_poisoned, widths};
use crate::support::{geometry, ulps};

/// A row of zeros stays zeros, and no other bit moves.
pub(crate) fn zero_state_row(runtime: &Runtime) {
    let sizes = geometry(2, 1, 2, 20, 1, 0);
    for epsilon in [1e-5, 1e-30, 3.0] {
        let parameters = Parameters { epsilon, ..Parameters::default() };
        let clean = inputs(&sizes, Dtype::F32, 3);
        let before = run_poisoned(runtime, &clean, &widths(&sizes), &parameters);
        let mut spoilt = clean.clone();
        // Row 1, the second state row of C.
        let begin = sizes.projected_width() + sizes.slices().c.start + 20;
        spoilt.projected.as_f32_mut().unwrap()[begin..begin + 20].fill(0.0);
        let after = check(runtime, &spoilt, &widths(&sizes), &parameters, "a zero state row");
        for ((name, after), (_, before)) in after.named().zip(before.named()) {
            for (i, (after, before)) in
                after.as_f32().unwrap().iter().zip(before.as_f32().unwrap()).enumerate()
            {
                let own = name == "ch" && (60..80).contains(&i);
                let expected = if own { 0.0 } else { *before };
                assert_eq!(after.to_bits(), expected.to_bits(), "{name}, element {i}");
            }
        }
    }
}

/// Squares that overflow or vanish: each element within a few ulp, small ones beside large ones too.
pub(crate) fn state_rows_of_all_sizes(runtime: &Runtime) {
    let sizes = geometry(3, 0, 1, 40, 0, 0);
    for size in [3e37f32, 1e25, 1e18, 1.0, 1e-12, 1e-18, 1e-22, 1e-30] {
        for epsilon in [3e38, 1e-5, 1e-20, 2e-38] {
            let mut inputs = inputs(&sizes, Dtype::F32, 8);
            for (i, x) in inputs.projected.as_f32_mut().unwrap().iter_mut().enumerate() {
                *x *= size;
                if i % 7 == 0 {
                    *x *= 1e-7;
                }
            }
            let parameters = Parameters { epsilon, ..Parameters::default() };
            let found = run_poisoned(runtime, &inputs, &widths(&sizes), &parameters);
            let plain = inputs.as_ref().map(|_, t| t.to_f64());
            let exact =
                backslang::reference::mamba3::preprocess(&plain, &widths(&sizes), &parameters);
            let exact = exact.unwrap();
            for (found, exact) in [(&found.bh, &exact.bh), (&found.ch, &exact.ch)] {
                for (&found, &exact) in found.as_f32().unwrap().iter().zip(exact) {
                    let what = format!("size {size:e}, epsilon {epsilon:e}: {found:e}, {exact:e}");
                    let close = exact.abs() >= 1.2e-38 && ulps(found, exact) <= 12.0;
                    assert!(close || exact.abs() < 1.2e-38 && found.abs() < 1.2e-38, "{what}");
                }
            }
        }
    }
}

/// NaN and infinities in every element of both inputs in turn: non-finite where the reference is, the bits of the clean
/// run where it keeps its own.
pub(crate) fn nonfinite_inputs(runtime: &Runtime) {
    let sizes = geometry(2, 2, 2, 3, 3, 2);
    let parameters = Parameters::default();
    let clean = inputs(&sizes, Dtype::F32, 6);
    let reference = |inputs: &backslang::kernels::mamba3::preprocess::ForwardInputs<_>| {
        let plain = inputs.as_ref().map(|_, t: &backslang::HostTensor| t.to_f64());
        backslang::reference::mamba3::preprocess(&plain, &widths(&sizes), &parameters).unwrap()
    };
    let clean_found = run_poisoned(runtime, &clean, &widths(&sizes), &parameters);
    let clean_exact = reference(&clean);
    for (array, elements) in [("projected", 2 * sizes.projected_width()), ("dt_bias", 3)] {
        for at in 0..elements {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let spoilt = clean.clone().map(|name, mut tensor| {
                    if name == array {
                        tensor.as_f32_mut().unwrap()[at] = value;
                    }
                    tensor
                });
                let found = run_poisoned(runtime, &spoilt, &widths(&sizes), &parameters);
                let exact = reference(&spoilt);
                let groups = found.named().zip(exact.named()).zip(clean_found.named());
                for ((((name, found), (_, exact)), (_, clean)), (_, clean_exact)) in
                    groups.zip(clean_exact.named())
                {
                    let found = found.as_f32().unwrap().iter().zip(exact);
                    let clean = clean.as_f32().unwrap().iter().zip(clean_exact);
                    for (i, ((found, exact), (clean, clean_exact))) in found.zip(clean).enumerate()
                    {
                        let what = format!("{value} in {array}[{at}]: {name}[{i}] = {found}");
                        if exact.to_bits() == clean_exact.to_bits() {
                            assert_eq!(found.to_bits(), clean.to_bits(), "{what}");
                        } else {
                            assert_eq!(found.is_nan(), exact.is_nan(), "{what}");
                            let infinite = f64::from(*found) == *exact;
                            assert!(exact.is_nan() || exact.is_finite() || infinite, "{what}");
                        }
                    }
                }
            }
        }
    }
}
