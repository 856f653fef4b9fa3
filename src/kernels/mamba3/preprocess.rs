//! Arrays, sizes and parameters that the preprocess forward and backward share.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::host::Dtype;
use crate::kernels::index_range::{count, fits};
use crate::kernels::tensors::tensor_group;
use crate::runtime::Tensor;

tensor_group! {
    /// What the backward reads. Any number of leading axes (`[batch, length, …]`, or none) stands for the rows.
    pub struct BackwardInputs {
        /// The packed projection, `[rows, projected_width]`.
        pub projected,
        /// Added to `dd_dt`, `[heads]`.
        pub dt_bias,
        /// Upstream gradient, `[rows, inner_size]`.
        pub z_gradient,
        /// Upstream gradient, `[rows, inner_size]`.
        pub x_gradient,
        /// Upstream gradient, `[rows, bc_rows, state_size]`.
        pub bh_gradient,
        /// Upstream gradient, `[rows, bc_rows, state_size]`.
        pub ch_gradient,
        /// Upstream gradient, `[rows, heads]`.
        pub dt_gradient,
        /// Upstream gradient, `[rows, heads]`.
        pub adt_gradient,
        /// Upstream gradient, `[rows, heads]`.
        pub trap_gradient,
        /// Upstream gradient, `[rows, rope_angles]`.
        pub angle_gradient,
    }
}

tensor_group! {
    /// What the backward writes, every element of it.
    pub struct BackwardOutputs {
        /// Gradient of `projected`, shaped like it.
        pub projected_gradient,
        /// The gradient of `dt_bias` before the sum over rows, `[rows, heads]`.
        pub dt_bias_partial,
        /// Gradient of `dt_bias`, `[heads]`: `dt_bias_partial` summed in a fixed order.
        pub dt_bias_gradient,
    }
}

tensor_group! {
    /// What the forward reads. Any number of leading axes (`[batch, length, …]`, or none) stands for the rows.
    pub struct ForwardInputs {
        /// The packed projection, `[rows, projected_width]`.
        pub projected,
        /// Added to `dd_dt`, `[heads]`.
        pub dt_bias,
    }
}

tensor_group! {
    /// What the forward writes.
    pub struct ForwardOutputs {
        /// Passed through, `[rows, inner_size]`.
        pub z,
        /// Passed through, `[rows, inner_size]`.
        pub x,
        /// B, each state row over its root mean square, `[rows, bc_rows, state_size]`.
        pub bh,
        /// C, each state row over its root mean square, `[rows, bc_rows, state_size]`.
        pub ch,
        /// Step sizes, `[rows, heads]`.
        pub dt,
        /// Step sizes times decays, `[rows, heads]`.
        pub adt,
        /// Passed through, `[rows, heads]`.
        pub trap,
        /// Passed through, `[rows, rope_angles]`.
        pub angle,
    }
}

tensor_group! {
    /// The slices of one packed projection row, in the order in which they lie.
    pub struct Slices {
        /// `inner_size` wide.
        pub z,
        /// `inner_size` wide.
        pub x,
        /// `bc_rows · state_size` wide.
        pub b,
        /// `bc_rows · state_size` wide.
        pub c,
        /// `heads` wide.
        pub dd_dt,
        /// `heads` wide.
        pub dd_a,
        /// `heads` wide.
        pub trap,
        /// `rope_angles` wide.
        pub angle,
    }
}

/// The element type of an array where that of `projected` is `packed`: what belongs to a head alone is f32, all else is
/// as the packed rows.
pub fn dtype_of(array: &str, packed: Dtype) -> Dtype {
    match array {
        "dt_bias" | "dt" | "adt" | "trap" | "dt_gradient" | "adt_gradient" | "trap_gradient"
        | "dt_bias_partial" | "dt_bias_gradient" => Dtype::F32,
        _ => packed,
    }
}

/// The widths that the forward cannot infer from its arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// Width of z and of x.
    pub inner_size: usize,
    /// State rows of B and of C a token: groups · mimo_rank.
    pub bc_rows: usize,
    /// Width of one state row.
    pub state_size: usize,
    /// Rotary angles a token.
    pub rope_angles: usize,
}

/// The scalar parameters of the preprocess; the defaults are those of the fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// Added to the mean square before the root; > 0 (1e-5).
    pub epsilon: f32,
    /// Lower clamp of dt; 0 ≤ dt_min ≤ dt_max (0.001).
    pub dt_min: f32,
    /// Upper clamp of dt; may be infinite (0.1).
    pub dt_max: f32,
    /// Least magnitude of the decay; ≥ 0 (1e-4).
    pub a_floor: f32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { epsilon: 1e-5, dt_min: 0.001, dt_max: 0.1, a_floor: 1e-4 }
    }
}

impl Parameters {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Parameter`] naming what is out of its range (NaN included).
    pub fn check(&self) -> Result<()> {
        let fail = |name, expected: &str, found: String| {
            Err(Error::Parameter { name, expected: expected.into(), found })
        };
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return fail("epsilon", "a finite number > 0", self.epsilon.to_string());
        }
        if !(self.dt_min >= 0.0 && self.dt_min <= self.dt_max) {
            let found = format!("dt_min = {} and dt_max = {}", self.dt_min, self.dt_max);
            return fail("dt_min and dt_max", "0 ≤ dt_min ≤ dt_max", found);
        }
        if !(self.a_floor >= 0.0 && self.a_floor.is_finite()) {
            return fail("a_floor", "a finite number ≥ 0", self.a_floor.to_string());
        }
        Ok(())
    }
}

/// The sizes of one preprocess, inferred from the shapes of its arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// The leading axes that stand for the rows; outputs keep them.
    pub leading: Vec<usize>,
    /// Their product.
    pub rows: usize,
    /// Width of z and of x.
    pub inner_size: usize,
    /// State rows of B and of C a token: groups · mimo_rank.
    pub bc_rows: usize,
    /// Width of one state row.
    pub state_size: usize,
    /// Heads.
    pub heads: usize,
    /// Rotary angles a token.
    pub rope_angles: usize,
}

impl Geometry {
    /// Infers the sizes from the shapes of the backward's inputs and checks that all agree.
    ///
    /// # Errors
    /// [`Error::Shape`] for the first array that disagrees; [`Error::TooLarge`] for one with more rows or columns than
    /// the kernels can index.
    pub fn of_backward(shapes: &BackwardInputs<&[usize]>) -> Result<Self> {
        let (leading, _) = split(shapes.projected, 1, "projected", "[…rows, projected_width]")?;
        let trailing = |array, shape: &[usize], axes: usize, words: &str| -> Result<Vec<usize>> {
            let (lead, tail) = split(shape, axes, array, words)?;
            if lead != leading {
                return Err(Error::Shape {
                    array,
                    expected: format!("{words} with the leading axes {leading:?} of `projected`"),
                    found: shape.to_vec(),
                });
            }
            Ok(tail.to_vec())
        };
        let inner = trailing("z_gradient", shapes.z_gradient, 1, "[…rows, inner_size]")?;
        let state = trailing("bh_gradient", shapes.bh_gradient, 2, "[…rows, bc_rows, state_size]")?;
        let angle = trailing("angle_gradient", shapes.angle_gradient, 1, "[…rows, rope_angles]")?;
        let widths = Widths {
            inner_size: inner[0],
            bc_rows: state[0],
            state_size: state[1],
            rope_angles: angle[0],
        };
        let geometry = Self::new(leading, shapes.dt_bias, &widths)?;
        geometry.check_backward(shapes)?;
        Ok(geometry)
    }

    /// The sizes of a forward, and whether the packed rows are as wide as `widths` ask for.
    ///
    /// # Errors
    /// [`Error::Shape`] for an array that disagrees; [`Error::TooLarge`] for one with more rows or columns than the
    /// kernels can index.
    pub fn of_forward(shapes: &ForwardInputs<&[usize]>, widths: &Widths) -> Result<Self> {
        let (leading, width) = split(shapes.projected, 1, "projected", "[…rows, projected_width]")?;
        let geometry = Self::new(leading, shapes.dt_bias, widths)?;
        if width == [geometry.projected_width()] {
            Ok(geometry)
        } else {
            geometry.wrong_projected(shapes.projected)
        }
    }

    /// Width of one packed projection row (saturating, for sizes that no array can have).
    pub fn projected_width(&self) -> usize {
        let widths = self.widths();
        widths.named().fold(0, |total, (_, &width)| total.saturating_add(width))
    }

    /// The rows that have anything to compute: none where they have no columns, however many there are.
    pub(crate) fn filled_rows(&self) -> usize {
        if self.projected_width() == 0 { 0 } else { self.rows }
    }

    /// The state rows of B and of C a token that have elements: none where they have no width.
    pub(crate) fn filled_bc_rows(&self) -> usize {
        if self.state_size == 0 { 0 } else { self.bc_rows }
    }

    /// Where the slices lie in a packed projection row.
    pub fn slices(&self) -> Slices<Range<usize>> {
        let mut begin = 0usize;
        self.widths().map(|_, width| {
            let end = begin.saturating_add(width);
            std::mem::replace(&mut begin, end)..end
        })
    }

    /// The slices of packed rows as views of them, `[…rows, width of the slice]`: what passes through lies in its place.
    ///
    /// # Errors
    /// [`Error::Shape`] when `packed` is not shaped as `projected` is under these sizes.
    pub fn views(&self, packed: &Tensor) -> Result<Slices<Tensor>> {
        let expected = self.backward_inputs().projected;
        if packed.shape() != expected {
            return self.wrong_projected(packed.shape());
        }
        self.slices().try_map(|_, columns| packed.narrow(self.leading.len(), columns))
    }

    /// The shapes of the backward's inputs under these sizes.
    pub fn backward_inputs(&self) -> BackwardInputs<Vec<usize>> {
        let rows = |tail: &[usize]| [&self.leading, tail].concat();
        BackwardInputs {
            projected: rows(&[self.projected_width()]),
            dt_bias: vec![self.heads],
            z_gradient: rows(&[self.inner_size]),
            x_gradient: rows(&[self.inner_size]),
            bh_gradient: rows(&[self.bc_rows, self.state_size]),
            ch_gradient: rows(&[self.bc_rows, self.state_size]),
            dt_gradient: rows(&[self.heads]),
            adt_gradient: rows(&[self.heads]),
            trap_gradient: rows(&[self.heads]),
            angle_gradient: rows(&[self.rope_angles]),
        }
    }

    /// The shapes of the backward's outputs under these sizes.
    pub fn backward_outputs(&self) -> BackwardOutputs<Vec<usize>> {
        BackwardOutputs {
            projected_gradient: [self.leading.as_slice(), &[self.projected_width()]].concat(),
            dt_bias_partial: [self.leading.as_slice(), &[self.heads]].concat(),
            dt_bias_gradient: vec![self.heads],
        }
    }

    /// The shapes of the forward's outputs under these sizes.
    pub fn forward_outputs(&self) -> ForwardOutputs<Vec<usize>> {
        let rows = |tail: &[usize]| [&self.leading, tail].concat();
        ForwardOutputs {
            z: rows(&[self.inner_size]),
            x: rows(&[self.inner_size]),
            bh: rows(&[self.bc_rows, self.state_size]),
            ch: rows(&[self.bc_rows, self.state_size]),
            dt: rows(&[self.heads]),
            adt: rows(&[self.heads]),
            trap: rows(&[self.heads]),
            angle: rows(&[self.rope_angles]),
        }
    }

    fn new(leading: &[usize], dt_bias: &[usize], widths: &Widths) -> Result<Self> {
        let &[heads] = dt_bias else {
            return Err(Error::Shape {
                array: "dt_bias",
                expected: "[heads]".into(),
                found: dt_bias.to_vec(),
            });
        };
        let Widths { inner_size, bc_rows, state_size, rope_angles } = *widths;
        let rows = count(leading);
        fits("rows", rows)?;
        let leading = leading.to_vec();
        let rows = rows as usize;
        let geometry = Self { leading, rows, inner_size, bc_rows, state_size, heads, rope_angles };
        let width = geometry.projected_width();
        // The axes first: beside an axis of 0, any other may be huge.
        fits("bc_rows", bc_rows as u128)?;
        fits("state_size", state_size as u128)?;
        fits("columns of `projected`", width as u128)?;
        Ok(geometry)
    }

    fn widths(&self) -> Slices<usize> {
        let state = self.bc_rows.saturating_mul(self.state_size);
        Slices {
            z: self.inner_size,
            x: self.inner_size,
            b: state,
            c: state,
            dd_dt: self.heads,
            dd_a: self.heads,
            trap: self.heads,
            angle: self.rope_angles,
        }
    }

    fn check_backward(&self, shapes: &BackwardInputs<&[usize]>) -> Result<()> {
        let expected = self.backward_inputs();
        for ((array, found), (_, expected)) in shapes.named().zip(expected.as_ref().named()) {
            if *found == expected.as_slice() {
                continue;
            }
            if array == "projected" {
                return self.wrong_projected(found);
            }
            let found = found.to_vec();
            return Err(Error::Shape { array, expected: format!("{expected:?}"), found });
        }
        Ok(())
    }

    /// Says how the expected width comes about, as any of the sizes may be the wrong one.
    fn wrong_projected<T>(&self, found: &[usize]) -> Result<T> {
        let Self { inner_size, bc_rows, state_size, heads, rope_angles, .. } = self;
        Err(Error::Shape {
            array: "projected",
            expected: format!(
                "{:?}, as inner_size {inner_size}, bc_rows {bc_rows}, state_size {state_size}, \
                 heads {heads} and rope_angles {rope_angles} ask for",
                self.backward_inputs().projected
            ),
            found: found.to_vec(),
        })
    }
}

/// Splits a shape into its leading axes and the last `axes`.
fn split<'a>(
    shape: &'a [usize],
    axes: usize,
    array: &'static str,
    words: &str,
) -> Result<(&'a [usize], &'a [usize])> {
    let Some(leading) = shape.len().checked_sub(axes) else {
        return Err(Error::Shape { array, expected: words.into(), found: shape.to_vec() });
    };
    Ok(shape.split_at(leading))
}
