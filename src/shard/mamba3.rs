//! Rows of the Mamba-3 preprocess.

use super::cost::Division;
use super::slices::rows;
use super::{Divide, Engine, Output, PartArray, Shard, Source, Units};
use crate::error::Result;
use crate::host::HostTensor;
use crate::kernels::mamba3::preprocess::{
    BackwardInputs, ForwardInputs, Geometry, Parameters, Widths, dtype_of,
};
use crate::kernels::mamba3::preprocess_backward::{DT_BIAS_CHUNK_ROWS, Onto};

/// A call of [`preprocess_forward::run`](crate::kernels::mamba3::preprocess_forward::run).
#[derive(Debug, Clone, Copy)]
pub struct PreprocessForward<'a> {
    /// What it reads.
    pub inputs: &'a ForwardInputs<HostTensor>,
    /// How the packed rows are cut.
    pub widths: Widths,
    /// Its parameters.
    pub parameters: Parameters,
}

/// A call of [`preprocess_backward::run_onto`](crate::kernels::mamba3::preprocess_backward::run_onto).
#[derive(Debug, Clone, Copy)]
pub struct PreprocessBackward<'a> {
    /// What it reads.
    pub inputs: &'a BackwardInputs<HostTensor>,
    /// Its parameters.
    pub parameters: Parameters,
    /// What to add to.
    pub onto: &'a Onto,
}

/// The array of a part that has the dt_bias sums of its chunks of rows.
const CHUNKS: &str = "dt_bias_chunks";

impl PreprocessForward<'_> {
    fn geometry(&self) -> Result<Geometry> {
        Geometry::of_forward(&self.inputs.as_ref().map(|_, t| t.shape()), &self.widths)
    }
}

impl Divide for PreprocessForward<'_> {
    fn outputs(&self) -> Result<Vec<Output>> {
        let geometry = self.geometry()?;
        let dtype = self.inputs.projected.dtype();
        let shapes = geometry.forward_outputs();
        let output = |(name, shape): (&str, &Vec<usize>)| Output {
            name: name.into(),
            shape: shape.clone(),
            dtype: dtype_of(name, dtype),
            source: Source::Placed(of_rows(&geometry, shape)),
        };
        Ok(shapes.named().map(output).collect())
    }

    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>> {
        let geometry = self.geometry()?;
        let range = Division::even(geometry.rows).units(shard);
        if range.is_empty() {
            return Ok(self.outputs()?.iter().map(|output| output.nothing(engine)).collect());
        }
        let inputs = self.inputs.as_ref().try_map(|name, tensor| match name {
            "dt_bias" => Ok(tensor.clone()),
            _ => rows(tensor, geometry.rows, geometry.leading.len(), &range),
        })?;
        let outputs = engine.preprocess(&inputs, &self.widths, &self.parameters)?;
        let mut arrays = Vec::new();
        outputs.map(|name, tensor| arrays.push(PartArray::new(name, range.clone(), tensor)));
        Ok(arrays)
    }
}

impl PreprocessBackward<'_> {
    fn geometry(&self) -> Result<Geometry> {
        Geometry::of_backward(&self.inputs.as_ref().map(|_, t| t.shape()))
    }
}

impl Divide for PreprocessBackward<'_> {
    fn outputs(&self) -> Result<Vec<Output>> {
        let geometry = self.geometry()?;
        let dtype = self.inputs.projected.dtype();
        let shapes = geometry.backward_outputs();
        let output = |(name, shape): (&str, &Vec<usize>)| Output {
            name: name.into(),
            shape: shape.clone(),
            dtype: dtype_of(name, dtype),
            source: match name {
                "dt_bias_gradient" => Source::Summed {
                    array: CHUNKS.into(),
                    terms: geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS),
                    onto: self.onto.dt_bias_gradient.clone(),
                },
                _ => Source::Placed(of_rows(&geometry, shape)),
            },
        };
        Ok(shapes.named().map(output).collect())
    }

    fn part(&self, shard: Shard, engine: &mut Engine<'_>) -> Result<Vec<PartArray>> {
        let geometry = self.geometry()?;
        let chunks = Division::even(geometry.rows.div_ceil(DT_BIAS_CHUNK_ROWS)).units(shard);
        if chunks.is_empty() {
            return Ok(self.outputs()?.iter().map(|output| output.nothing(engine)).collect());
        }
        let end = geometry.rows.min(chunks.end * DT_BIAS_CHUNK_ROWS);
        let range = chunks.start * DT_BIAS_CHUNK_ROWS..end;
        let cut = |tensor| rows(tensor, geometry.rows, geometry.leading.len(), &range);
        let inputs = self.inputs.as_ref().try_map(|name, tensor| match name {
            "dt_bias" => Ok(tensor.clone()),
            _ => cut(tensor),
        })?;
        let onto = Onto {
            projected_gradient: self.onto.projected_gradient.as_ref().map(cut).transpose()?,
            dt_bias_gradient: None,
        };
        let (outputs, sums) = engine.preprocess_backward(&inputs, &self.parameters, &onto)?;
        Ok(vec![
            PartArray::new("projected_gradient", range.clone(), outputs.projected_gradient),
            PartArray::new("dt_bias_partial", range, outputs.dt_bias_partial),
            PartArray { name: CHUNKS.into(), units: chunks, values: sums },
        ])
    }
}

/// The units of an array of this shape.
fn of_rows(geometry: &Geometry, shape: &[usize]) -> Units {
    Units::of_rows([&[geometry.rows], &shape[geometry.leading.len()..]].concat())
}
