//! The gradients under way.

use ndarray::ArrayD;

use super::{add_scaled, array};
use crate::error::Result;
use crate::kernels::attention::{Geometry, Gradient, Gradients};

/// A running sum for each gradient that was asked for.
pub(super) struct Sums {
    /// By the place in [`Gradient::ALL`]; `None` where not asked for.
    of: [Option<Vec<f64>>; Gradient::ALL.len()],
    widths: [usize; Gradient::ALL.len()],
}

impl Sums {
    pub(super) fn new(geometry: &Geometry, gradients: Gradients) -> Self {
        let shape = |gradient| geometry.gradient_shape(gradient);
        let zeros = |gradient| vec![0.0; shape(gradient).iter().product()];
        Self {
            of: Gradient::ALL.map(|g| gradients.contains(g).then(|| zeros(g))),
            widths: Gradient::ALL.map(|g| shape(g).last().copied().unwrap_or(0)),
        }
    }

    /// Adds `factor · values` to row `row` of a gradient, if it was asked for.
    pub(super) fn add(&mut self, gradient: Gradient, row: usize, factor: f64, values: &[f64]) {
        let width = self.widths[gradient as usize];
        if let Some(sums) = &mut self.of[gradient as usize] {
            add_scaled(&mut sums[row * width..][..width], factor, values);
        }
    }

    /// The arrays of the gradients asked for, in the order of [`Gradient::ALL`].
    pub(super) fn into_arrays(self, geometry: &Geometry) -> Result<Vec<(Gradient, ArrayD<f64>)>> {
        let asked = Gradient::ALL.into_iter().zip(self.of);
        let asked = asked.filter_map(|(gradient, sums)| Some((gradient, sums?)));
        let to_array = |(gradient, sums): (Gradient, _)| {
            let shape = geometry.gradient_shape(gradient);
            Ok((gradient, array(gradient.output_name(), &shape, sums)?))
        };
        asked.map(to_array).collect()
    }
}
