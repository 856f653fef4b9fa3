//! State rows of B and C.

use backslang::kernels::mamba3::preprocess::Parameters;
use backslang::runtime::Runtime;

use crate::common::random;

use crate::support::{check, geometry, run_poisoned, ulps};

/// A state row of zeros, of B and of C: its gradient is g/sqrt(epsilon), and no other bit moves.
pub(crate) fn zero_state_row(runtime: &Runtime) {
    let sizes = geometry(2, 1, 2, 20, 1, 0);
    let slices = sizes.slices();
    let (width, state) = (sizes.projected_width(), sizes.state_size);
    for epsilon in [1e-5, 1e-30, 3.0] {
        let parameters = Parameters { epsilon, ..Parameters::default() };
        let clean = random::mamba3(&sizes, 3);
        let before = run_poisoned(runtime, &clean, &parameters).projected_gradient;
        for (slice, upstream) in
            [(slices.b.clone(), &clean.bh_gradient), (slices.c.clone(), &clean.ch_gradient)]
        {
            // Row 1, the second state row.
            let own = width + slice.start + state..width + slice.start + 2 * state;
            let mut inputs = clean.clone();
            inputs.projected.as_f32_mut().unwrap()[own.clone()].fill(0.0);
            let after = check(runtime, &inputs, &parameters, "a zero state row");
            let g = &upstream.as_f32().unwrap()[3 * state..];
            let pairs = after.projected_gradient.as_f32().unwrap().iter();
            for (i, (after, before)) in pairs.zip(before.as_f32().unwrap()).enumerate() {
                if own.contains(&i) {
                    let exact = f64::from(g[i - own.start]) / f64::from(epsilon).sqrt();
                    assert!(ulps(*after, exact) <= 4.0, "{after}, not {exact}");
                } else {
                    assert_eq!(after.to_bits(), before.to_bits(), "element {i}");
                }
            }
        }
    }
}

/// Squares overflow here; the gradient does not.
pub(crate) fn huge_state_row(runtime: &Runtime) {
    let mut inputs = random::mamba3(&geometry(3, 0, 1, 30, 0, 0), 8);
    inputs.projected.as_f32_mut().unwrap().iter_mut().for_each(|x| *x *= 1e25);
    inputs.bh_gradient.as_f32_mut().unwrap().iter_mut().for_each(|x| *x *= 1e10);
    check(runtime, &inputs, &Parameters::default(), "huge state rows");
}

/// Gradients of one state row do not move by a bit when another row of the token changes, in value or upstream.
pub(crate) fn state_rows_are_separate(runtime: &Runtime) {
    let sizes = geometry(2, 2, 3, 17, 2, 1);
    let slices = sizes.slices();
    let (width, state, bc_rows) = (sizes.projected_width(), sizes.state_size, sizes.bc_rows);
    let clean = random::mamba3(&sizes, 4);
    let before = run_poisoned(runtime, &clean, &Parameters::default()).projected_gradient;
    for changed in 0..2 * bc_rows {
        let (of_c, index) = (changed >= bc_rows, changed % bc_rows);
        let begin = width + if of_c { slices.c.start } else { slices.b.start } + index * state;
        for upstream_too in [false, true] {
            let mut inputs = clean.clone();
            let own = &mut inputs.projected.as_f32_mut().unwrap()[begin..begin + state];
            own.iter_mut().for_each(|x| *x = 3.0 * *x + 1.0);
            let upstream = if of_c { &mut inputs.ch_gradient } else { &mut inputs.bh_gradient };
            if upstream_too {
                let own = &mut upstream.as_f32_mut().unwrap()[(bc_rows + index) * state..][..state];
                own.iter_mut().for_each(|x| *x -= 5.0);
            }
            let after = run_poisoned(runtime, &inputs, &Parameters::default()).projected_gradient;
            let pairs = after.as_f32().unwrap().iter().zip(before.as_f32().unwrap());
            for (i, (after, before)) in pairs.enumerate() {
                let moved = after.to_bits() != before.to_bits();
                assert_eq!(moved, (begin..begin + state).contains(&i), "row {changed}: {i}");
            }
        }
    }
}
