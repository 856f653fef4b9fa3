//! Float64 twins of the Mamba-3 kernels.

use ndarray::ArrayD;

use super::{add_scaled, array, dot, row_major};
use crate::error::Result;
use crate::kernels::mamba3::preprocess::{
    BackwardInputs, BackwardOutputs, ForwardInputs, ForwardOutputs, Geometry, Parameters, Widths,
};
use crate::kernels::mamba3::preprocess_backward::DT_BIAS_CHUNK_ROWS;

/// The preprocess: normalised state rows, `dt` and `adt`; everything else passes through.
///
/// Shapes are those of [`ForwardInputs`] and [`ForwardOutputs`]; `widths` says how the packed rows are cut.
///
/// # Errors
/// Parameters out of range and shapes that disagree.
pub fn preprocess(
    inputs: &ForwardInputs<ArrayD<f64>>,
    widths: &Widths,
    parameters: &Parameters,
) -> Result<ForwardOutputs<ArrayD<f64>>> {
    parameters.check()?;
    let geometry = Geometry::of_forward(&inputs.as_ref().map(|_, a| a.shape()), widths)?;
    let inputs = inputs.as_ref().map(|_, a| row_major(a));
    let scalars = Scalars::new(parameters);
    let mut outputs = ForwardOutputs::<Vec<f64>>::default();
    for row in 0..geometry.filled_rows() {
        let packed = row_of(&inputs.projected, geometry.rows, row);
        let token = geometry.slices().map(|_, range| &packed[range]);
        outputs.z.extend_from_slice(token.z);
        outputs.x.extend_from_slice(token.x);
        for (states, normalised) in [(token.b, &mut outputs.bh), (token.c, &mut outputs.ch)] {
            for state in states.chunks_exact(geometry.state_size.max(1)) {
                let r = inverse_rms(state, scalars.epsilon);
                normalised.extend(state.iter().map(|v| v * r));
            }
        }
        for head in 0..geometry.heads {
            let step =
                Step::new(token.dd_dt[head] + inputs.dt_bias[head], token.dd_a[head], &scalars);
            outputs.dt.push(step.dt);
            outputs.adt.push(step.dt * step.a_token);
        }
        outputs.trap.extend_from_slice(token.trap);
        outputs.angle.extend_from_slice(token.angle);
    }
    let shapes = geometry.forward_outputs();
    let mut shapes = shapes.named().map(|(_, shape)| shape.as_slice());
    outputs.try_map(|name, data| array(name, shapes.next().unwrap_or_default(), data))
}

/// The adjoint of [`preprocess`], given the gradient of each of its outputs.
///
/// Shapes are those of [`BackwardInputs`] and [`BackwardOutputs`].
///
/// # Errors
/// Parameters out of range and shapes that disagree.
pub fn preprocess_backward(
    inputs: &BackwardInputs<ArrayD<f64>>,
    parameters: &Parameters,
) -> Result<BackwardOutputs<ArrayD<f64>>> {
    preprocess_backward_chunks(inputs, parameters).map(|(outputs, _)| outputs)
}

/// As [`preprocess_backward`], and the dt_bias terms summed over each chunk of rows, `[chunks · heads]`, of which
/// `dt_bias_gradient` is the sum: in the order of the kernels, so that parts of the rows come to the same.
pub(crate) fn preprocess_backward_chunks(
    inputs: &BackwardInputs<ArrayD<f64>>,
    parameters: &Parameters,
) -> Result<(BackwardOutputs<ArrayD<f64>>, Vec<f64>)> {
    parameters.check()?;
    let geometry = Geometry::of_backward(&inputs.as_ref().map(|_, a| a.shape()))?;
    let inputs = inputs.as_ref().map(|_, a| row_major(a));
    let scalars = Scalars::new(parameters);
    let (rows, heads, width) = (geometry.rows, geometry.heads, geometry.projected_width());
    let mut outputs = BackwardOutputs {
        projected_gradient: vec![0.0; rows * width],
        dt_bias_partial: vec![0.0; rows * heads],
        dt_bias_gradient: vec![0.0; heads],
    };
    let mut chunks = vec![0.0; rows.div_ceil(DT_BIAS_CHUNK_ROWS) * heads];
    for row in 0..geometry.filled_rows() {
        let inputs = inputs.as_ref().map(|name, data| match name {
            "dt_bias" => &data[..],
            _ => row_of(data, rows, row),
        });
        let packed = &mut outputs.projected_gradient[row * width..][..width];
        backward_row(&geometry, &inputs, &scalars, packed);
        let raw_dt_gradient = &packed[geometry.slices().dd_dt];
        outputs.dt_bias_partial[row * heads..][..heads].copy_from_slice(raw_dt_gradient);
        let chunk = &mut chunks[row / DT_BIAS_CHUNK_ROWS * heads..];
        for (sum, term) in chunk.iter_mut().zip(raw_dt_gradient) {
            *sum += term;
        }
    }
    for chunk in chunks.chunks_exact(heads.max(1)) {
        add_scaled(&mut outputs.dt_bias_gradient, 1.0, chunk);
    }
    let shapes = geometry.backward_outputs();
    let mut shapes = shapes.named().map(|(_, shape)| shape.as_slice());
    let outputs =
        outputs.try_map(|name, data| array(name, shapes.next().unwrap_or_default(), data))?;
    Ok((outputs, chunks))
}

/// One row: `inputs` are its slices, `packed` takes the gradient of its packed projection.
fn backward_row(
    geometry: &Geometry,
    inputs: &BackwardInputs<&[f64]>,
    scalars: &Scalars,
    packed: &mut [f64],
) {
    let at = geometry.slices();
    let token = at.clone().map(|_, range| &inputs.projected[range]);
    packed[at.z].copy_from_slice(inputs.z_gradient);
    packed[at.x].copy_from_slice(inputs.x_gradient);
    packed[at.trap].copy_from_slice(inputs.trap_gradient);
    packed[at.angle].copy_from_slice(inputs.angle_gradient);
    for (range, states, upstream) in
        [(at.b, token.b, inputs.bh_gradient), (at.c, token.c, inputs.ch_gradient)]
    {
        let n = geometry.state_size.max(1);
        let rows = states.chunks_exact(n).zip(upstream.chunks_exact(n));
        for ((v, g), dv) in rows.zip(packed[range].chunks_exact_mut(n)) {
            normalise_backward(v, g, scalars.epsilon, dv);
        }
    }
    for head in 0..geometry.heads {
        let raw_dt = token.dd_dt[head] + inputs.dt_bias[head];
        let step = Step::new(raw_dt, token.dd_a[head], scalars);
        let (dt_gradient, adt_gradient) = (inputs.dt_gradient[head], inputs.adt_gradient[head]);
        packed[at.dd_dt.start + head] = step.raw_dt_gradient(dt_gradient, adt_gradient);
        packed[at.dd_a.start + head] = step.raw_a_gradient(adt_gradient);
    }
}

/// `r = 1 / sqrt(mean(v²) + epsilon)`.
fn inverse_rms(v: &[f64], epsilon: f64) -> f64 {
    1.0 / (dot(v, v) / v.len() as f64 + epsilon).sqrt()
}

/// `dv = r·(g − y·mean(g·y))` with `y = v·r`: the adjoint of one normalised state row.
fn normalise_backward(v: &[f64], g: &[f64], epsilon: f64, dv: &mut [f64]) {
    let r = inverse_rms(v, epsilon);
    let y = v.iter().map(|v| v * r).collect::<Vec<_>>();
    let mean = dot(g, &y) / v.len() as f64;
    for ((dv, g), y) in dv.iter_mut().zip(g).zip(&y) {
        *dv = r * (g - y * mean);
    }
}

/// The parameters, widened.
struct Scalars {
    epsilon: f64,
    dt_min: f64,
    dt_max: f64,
    a_floor: f64,
}

impl Scalars {
    fn new(parameters: &Parameters) -> Self {
        Self {
            epsilon: parameters.epsilon.into(),
            dt_min: parameters.dt_min.into(),
            dt_max: parameters.dt_max.into(),
            a_floor: parameters.a_floor.into(),
        }
    }
}

/// What one head of one row computes on the way forward, and what the way back needs of it.
struct Step {
    /// `clamp(s, dt_min, dt_max)`, `s = softplus(raw_dt)`.
    dt: f64,
    /// `−max(h, a_floor)`, `h = heavy_tail(raw_a)`.
    a_token: f64,
    /// `[dt_min ≤ s ≤ dt_max] · sigmoid(raw_dt)`.
    dt_slope: f64,
    /// `[h > a_floor] · h'(raw_a)`.
    a_slope: f64,
}

impl Step {
    /// `raw_dt` is `dd_dt + dt_bias`, `raw_a` is `dd_A`.
    fn new(raw_dt: f64, raw_a: f64, scalars: &Scalars) -> Self {
        let s = softplus(raw_dt);
        let h = heavy_tail(raw_a);
        let in_range = scalars.dt_min <= s && s <= scalars.dt_max;
        let above_floor = h > scalars.a_floor;
        Self {
            // `clamp` keeps a NaN. So must the floor, unlike `f64::max`.
            dt: s.clamp(scalars.dt_min, scalars.dt_max),
            a_token: if h < scalars.a_floor { -scalars.a_floor } else { -h },
            dt_slope: f64::from(in_range) * sigmoid(raw_dt),
            a_slope: f64::from(above_floor) * heavy_tail_slope(raw_a),
        }
    }

    /// `d(dd_dt) = (dt_gradient + adt_gradient · a_token) · dt_slope`.
    fn raw_dt_gradient(&self, dt_gradient: f64, adt_gradient: f64) -> f64 {
        (dt_gradient + adt_gradient * self.a_token) * self.dt_slope
    }

    /// `d(dd_A) = −adt_gradient · dt · a_slope`.
    fn raw_a_gradient(&self, adt_gradient: f64) -> f64 {
        -adt_gradient * self.dt * self.a_slope
    }
}

/// `ln(1 + eˣ)`, to full relative accuracy on both sides.
fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

/// `1 / (1 + e⁻ˣ)`, to full relative accuracy on both sides.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

/// `1 + a` for `a ≥ 0`, else `1 / (1 − a)`.
fn heavy_tail(a: f64) -> f64 {
    if a >= 0.0 { 1.0 + a } else { 1.0 / (1.0 - a) }
}

/// `1` for `a ≥ 0`, else `1 / (1 − a)²`.
fn heavy_tail_slope(a: f64) -> f64 {
    if a >= 0.0 { 1.0 } else { (1.0 - a).powi(-2) }
}

/// Row `row` of an array of `rows` > 0 rows.
fn row_of(data: &[f64], rows: usize, row: usize) -> &[f64] {
    let width = data.len() / rows;
    &data[row * width..][..width]
}
