//! Steps and decays.

use backslang::HostTensor;
use backslang::kernels::mamba3::preprocess::{ForwardInputs, Parameters};
use backslang::reference;
use backslang::runtime::Runtime;

use super::support::{run_poisoned, widths};
use crate::support::{geometry, ulps};

/// One row, a head for each pair of dd_dt + dt_bias and dd_A: dt and adt, and what float64 makes of them.
fn steps(
    runtime: &Runtime,
    raw: &[(f32, f32)],
    bias: f32,
    parameters: &Parameters,
) -> Vec<[(f32, f64); 2]> {
    let heads = raw.len();
    let sizes = geometry(1, 0, 0, 0, heads, 0);
    let mut projected = raw.iter().map(|(dt, _)| dt - bias).collect::<Vec<_>>();
    projected.extend(raw.iter().map(|(_, a)| a));
    projected.extend(vec![0.0; heads]);
    let inputs = ForwardInputs {
        projected: HostTensor::from_f32(&[1, 3 * heads], projected).unwrap(),
        dt_bias: HostTensor::from_f32(&[heads], vec![bias; heads]).unwrap(),
    };
    let found = run_poisoned(runtime, &inputs, &widths(&sizes), parameters);
    // The sum is f32 as the kernel's, where dd_dt and dt_bias are.
    let mut plain = inputs.as_ref().map(|_, t| t.to_f64());
    for (sum, dd_dt) in plain.projected.iter_mut().zip(inputs.projected.as_f32().unwrap()) {
        *sum = f64::from(dd_dt + bias);
    }
    for (a, (_, exact)) in plain.projected.iter_mut().skip(heads).zip(raw) {
        *a = f64::from(*exact);
    }
    plain.dt_bias.fill(0.0);
    let exact = reference::mamba3::preprocess(&plain, &widths(&sizes), parameters).unwrap();
    let (dt, adt) = (found.dt.as_f32().unwrap(), found.adt.as_f32().unwrap());
    let pairs = (0..heads).map(|h| [(dt[h], exact.dt[[0, h]]), (adt[h], exact.adt[[0, h]])]);
    pairs.collect()
}

fn wide() -> Parameters {
    Parameters { dt_min: 0.0, dt_max: f32::INFINITY, a_floor: 0.0, ..Parameters::default() }
}

/// Where the exact value is not a normal number, the device may make it 0.
fn assert_ulps((found, exact): (f32, f64), limit: f64, what: &str) {
    let least = f64::from(f32::MIN_POSITIVE);
    let flushed = exact.abs() < least && (f64::from(found) - exact).abs() < least;
    assert!(flushed || ulps(found, exact) <= limit, "{what}: {found:e}, not {exact:e}");
}

/// A few ulp, relative, over the whole range, however the argument is shared out between dd_dt and dt_bias.
pub(crate) fn softplus_tails(runtime: &Runtime) {
    let mut values = vec![
        -87.3, -87.0, -86.5, -40.0, -20.0, -17.0, -16.0, -15.0, 85.0, 88.0, 89.0, 100.0, 1e4, 3e38,
    ];
    values.extend((-600..600).map(|i| i as f32 * 0.07));
    let raw = values.iter().map(|&x| (x, -0.25)).collect::<Vec<_>>();
    for bias in [0.0, 0.5, -32.0] {
        for (x, [dt, adt]) in values.iter().zip(steps(runtime, &raw, bias, &wide())) {
            assert_ulps(dt, 4.0, &format!("softplus({x})"));
            assert_ulps(adt, 6.0, &format!("adt of {x}"));
            if *x >= 85.0 && bias == 0.0 {
                assert_eq!(dt.0, *x);
            }
            if *x == -20.0 && bias == 0.0 {
                assert!((f64::from(dt.0) - 2.0611536e-9).abs() < 1e-15, "{dt:?}");
            }
        }
    }
}

/// Where the result is not a normal number it may be 0, but never NaN, negative or too large.
pub(crate) fn below_the_normal_range(runtime: &Runtime) {
    let values = [-87.4, -88.0, -95.0, -103.0, -104.0, -150.0, -1e4, -3e38, f32::NEG_INFINITY];
    let raw = values.map(|x| (x, 0.0));
    for (x, [(dt, exact), (adt, _)]) in values.iter().zip(steps(runtime, &raw, 0.0, &wide())) {
        assert!((0.0..=exact + 1e-44).contains(&f64::from(dt)), "{x}: {dt:e}, not {exact:e}");
        assert!((-exact - 1e-44..=0.0).contains(&f64::from(adt)), "{x}: {adt:e}, not {exact:e}");
    }
}

/// Below, on, above and one step beside both bounds; NaN stays NaN in dt and adt.
pub(crate) fn dt_clamp(runtime: &Runtime) {
    let raw = [-60.0, -6.0, -3.0, -1.0, 0.5, 90.0, f32::INFINITY, f32::NAN].map(|x| (x, 0.0));
    let open = steps(runtime, &raw, 0.0, &wide()).into_iter().map(|[(dt, _), _]| dt);
    let open = open.collect::<Vec<_>>();
    assert!(open[6] == f32::INFINITY && open[7].is_nan(), "{open:?}");
    let s = open[2];
    for (dt_min, dt_max) in [
        (0.0, f32::INFINITY),
        (s, s),
        (s.next_down(), s.next_up()),
        (s.next_up(), f32::INFINITY),
        (s.next_up(), s.next_up()),
        (0.0, s.next_down()),
        (2.0 * s, 3.0 * s),
        (0.0, 0.5 * s),
        (0.0, 0.0),
        (f32::INFINITY, f32::INFINITY),
    ] {
        let parameters = Parameters { dt_min, dt_max, ..wide() };
        for (s, [(dt, _), (adt, _)]) in open.iter().zip(steps(runtime, &raw, 0.0, &parameters)) {
            let expected = s.clamp(dt_min, dt_max);
            let what = format!("{s} in [{dt_min}, {dt_max}]: {dt}, {adt}");
            assert!(dt.to_bits() == expected.to_bits() || dt.is_nan() && s.is_nan(), "{what}");
            assert!(adt == -expected || adt.is_nan() && s.is_nan(), "{what}");
        }
    }
}

/// The decay on both sides of 0, at and beside the floor, and where 1 / (1 − dd_A) is no normal number.
pub(crate) fn decays(runtime: &Runtime) {
    let mut a = vec![-3e38f32, -1e30, -1e6, -3.0, -1.0, -0.5, -1e-9, -0.0, 0.0, 1e-9, 0.5, 0.75];
    a.extend([3e37, 3e38]);
    for a_floor in [0.0, 1e-4, 0.25, 0.25f32.next_up(), 1.5] {
        let parameters = Parameters { a_floor, ..wide() };
        for raw_dt in [-20.0, 0.0, 3e37] {
            let raw = a.iter().map(|&a| (raw_dt, a)).collect::<Vec<_>>();
            for (a, [_, (adt, exact)]) in a.iter().zip(steps(runtime, &raw, 0.0, &parameters)) {
                let what = format!("dd_A = {a:e}, dt of {raw_dt}, floor {a_floor}");
                if exact.abs() > f64::from(f32::MAX) {
                    assert_eq!(adt, f32::NEG_INFINITY, "{what}");
                } else {
                    assert_ulps((adt, exact), 6.0, &what);
                }
            }
        }
    }
    // NaN in dd_A reaches adt alone; a decay without end makes adt so.
    let raw = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|a| (0.0, a));
    let [nan, fast, none] = steps(runtime, &raw, 0.0, &wide()).try_into().unwrap();
    assert!(nan[0].0.is_finite() && nan[1].0.is_nan(), "{nan:?}");
    assert_eq!((fast[1].0, none[1].0), (f32::NEG_INFINITY, 0.0));
}
