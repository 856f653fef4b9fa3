//! The arrays of a training step: host arrays, or tensors on the device.

use backslang::kernels::attention::Schedule;
use backslang::kernels::mamba3::preprocess::Widths;
use backslang::runtime::{Runtime, Tensor};
use backslang::{HostTensor, Result};

/// The arrays of one layer.
pub(crate) struct Layer<T> {
    /// `[rows, projected_width]`; from the second layer on, the attention before it fills in the x slice.
    pub projected: T,
    /// `[pages, page_size, kv_heads, dim]`: what earlier steps have appended.
    pub k: T,
    /// As `k`.
    pub v: T,
    /// What the scan gives, shaped as the preprocess' outputs of these names.
    pub scan: Scan<T>,
}

/// The gradients of what a scan would read.
pub(crate) struct Scan<T> {
    /// `[rows, heads · dim]`
    pub z: T,
    /// `[rows, heads]`
    pub dt: T,
    /// `[rows, heads]`
    pub adt: T,
    /// `[rows, heads]`
    pub trap: T,
    /// `[rows, rope_angles]`
    pub angle: T,
}

/// What a step takes.
pub(crate) struct Model<T> {
    /// In the order of the forward pass.
    pub layers: Vec<Layer<T>>,
    /// `[heads]`, one for all layers.
    pub dt_bias: T,
    /// Of the last layer's attention, `[rows, heads, dim]`.
    pub output_gradient: T,
    /// Which rows belong to which sequence, where they stand, and where the pages are: that of all layers.
    pub schedule: Schedule,
    /// Columns of the packed rows: of the queries (`heads · dim`), keys (`kv_heads`, `dim`) and angles.
    pub widths: Widths,
}

/// What a step gives.
pub(crate) struct Gradients<T> {
    /// For each layer, those of `projected`, `k` and `v`.
    pub layers: Vec<[T; 3]>,
    /// Summed over the layers.
    pub dt_bias: T,
    /// The last layer's attention, `[rows, heads, dim]`.
    pub output: T,
}

impl Model<HostTensor> {
    /// The model in device memory.
    pub(crate) fn upload(&self, runtime: &Runtime) -> Result<Model<Tensor>> {
        let upload = |name, tensor: &HostTensor| runtime.upload(name, tensor);
        let layer = |layer: &Layer<HostTensor>| {
            Ok(Layer {
                projected: upload("projected", &layer.projected)?,
                k: upload("k", &layer.k)?,
                v: upload("v", &layer.v)?,
                scan: Scan {
                    z: upload("z_gradient", &layer.scan.z)?,
                    dt: upload("dt_gradient", &layer.scan.dt)?,
                    adt: upload("adt_gradient", &layer.scan.adt)?,
                    trap: upload("trap_gradient", &layer.scan.trap)?,
                    angle: upload("angle_gradient", &layer.scan.angle)?,
                },
            })
        };
        Ok(Model {
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            dt_bias: upload("dt_bias", &self.dt_bias)?,
            output_gradient: upload("output_gradient", &self.output_gradient)?,
            schedule: self.schedule.clone(),
            widths: self.widths,
        })
    }
}

impl Gradients<Tensor> {
    /// The gradients in host memory.
    pub(crate) fn download(&self, runtime: &Runtime) -> Result<Gradients<HostTensor>> {
        let layer = |[projected, k, v]: &[Tensor; 3]| {
            Ok([runtime.download(projected)?, runtime.download(k)?, runtime.download(v)?])
        };
        Ok(Gradients {
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            dt_bias: runtime.download(&self.dt_bias)?,
            output: runtime.download(&self.output)?,
        })
    }
}

/// Query heads of [`sample`].
pub(crate) const HEADS: usize = 4;
/// Columns of the packed rows of [`sample`]: queries of 4 heads, keys and values of 2, all 16 wide.
pub(crate) const WIDTHS: Widths =
    Widths { inner_size: 64, bc_rows: 2, state_size: 16, rope_angles: 6 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 10;

/// Random values for two layers and sequences of 11 + 3, 0 + 2 and 7 + 4 tokens, the second numbers those of this step,
/// on pages in any order.
pub(crate) fn sample(rng: &mut fastrand::Rng) -> Result<Model<HostTensor>> {
    let schedule = schedule(rng, [(11, 3), (0, 2), (7, 4)]);
    let rows = schedule.sequence_ids.len();
    let layers = (0..2).map(|index| layer(rng, rows, index > 0)).collect::<Result<_>>()?;
    Ok(Model {
        layers,
        dt_bias: normals(rng, &[HEADS])?,
        output_gradient: normals(rng, &[rows, HEADS, WIDTHS.inner_size / HEADS])?,
        schedule,
        widths: WIDTHS,
    })
}

fn schedule(rng: &mut fastrand::Rng, tokens: [(usize, usize); 3]) -> Schedule {
    let mut pages: Vec<i128> = (0..PAGES as i128).collect();
    rng.shuffle(&mut pages);
    let mut schedule = Schedule { table_width: 4, ..Schedule::default() };
    let mut positions = Vec::new();
    for (sequence, (old, new)) in tokens.into_iter().enumerate() {
        let used = (old + new).div_ceil(PAGE_SIZE);
        let table = (0..4).map(|page| if page < used { pages.pop() } else { None }.unwrap_or(-1));
        schedule.block_table.extend(table);
        schedule.sequence_lengths.push((old + new) as i128);
        schedule.sequence_ids.extend((0..new).map(|_| sequence as i128));
        positions.extend((old..old + new).map(|token| token as i128));
    }
    Schedule { positions: Some(positions), ..schedule }
}

fn layer(rng: &mut fastrand::Rng, rows: usize, joined: bool) -> Result<Layer<HostTensor>> {
    let Widths { inner_size, bc_rows, state_size, rope_angles } = WIDTHS;
    let width = 2 * inner_size + 2 * bc_rows * state_size + 3 * HEADS + rope_angles;
    let mut projected = normals(rng, &[rows, width])?;
    if joined {
        // The layer before fills it in.
        let values = projected.as_f32_mut().into_iter().flatten().enumerate();
        let x = values.filter(|(i, _)| (inner_size..2 * inner_size).contains(&(i % width)));
        x.for_each(|(_, value)| *value = f32::NAN);
    }
    let cache = [PAGES, PAGE_SIZE, bc_rows, state_size];
    Ok(Layer {
        projected,
        k: normals(rng, &cache)?,
        v: normals(rng, &cache)?,
        scan: Scan {
            z: normals(rng, &[rows, inner_size])?,
            dt: normals(rng, &[rows, HEADS])?,
            adt: normals(rng, &[rows, HEADS])?,
            trap: normals(rng, &[rows, HEADS])?,
            angle: normals(rng, &[rows, rope_angles])?,
        },
    })
}

/// Normally distributed values, by Box and Muller.
fn normals(rng: &mut fastrand::Rng, shape: &[usize]) -> Result<HostTensor> {
    let mut normal = || {
        let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
    };
    HostTensor::from_f32(shape, (0..shape.iter().product()).map(|_| normal()).collect())
}
