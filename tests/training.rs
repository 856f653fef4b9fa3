//! A training step of two layers, on the device alone, against float64: `examples/training_step`.

#[path = "common/mod.rs"]
mod common;
#[path = "../examples/training_step/model.rs"]
mod model;
#[path = "../examples/training_step/step.rs"]
mod step;

use backslang::kernels::attention::{
    BackwardInputs, ForwardInputs, ForwardOutputs, Gradient, History, Options,
};
use backslang::kernels::mamba3::preprocess::{self, Parameters};
use backslang::runtime::Runtime;
use backslang::{HostTensor, reference};
use common::compare::{assert_close, assert_same_bits};
use common::gpu;
use common::random;
use model::{Gradients, HEADS, Layer, Model, Scan, WIDTHS, sample};
use ndarray::{ArrayD, Axis, Slice};

fn main() -> std::process::ExitCode {
    gpu::main(vec![
        gpu::trial("gradients_are_those_of_float64", gradients_are_those_of_float64),
        gpu::trial("repeats_share_bits", repeats_share_bits),
        libtest_mimic::Trial::test("float64_is_its_own_derivative", || {
            float64_is_its_own_derivative();
            Ok(())
        }),
    ])
}

fn gradients_are_those_of_float64(runtime: &Runtime) {
    random::for_seeds(random::rounds(5), |rng| {
        let model = sample(rng).unwrap();
        let found = run(runtime, &model).unwrap();
        let expected = Twin::new(&model).gradients();
        assert_close(&found.output, &expected.output, 2e-6, "output");
        assert_close(&found.dt_bias, &expected.dt_bias, 4e-6, "dt_bias_gradient");
        for (index, (found, expected)) in found.layers.iter().zip(&expected.layers).enumerate() {
            for ((name, found), expected) in ["projected", "k", "v"].iter().zip(found).zip(expected)
            {
                assert_close(found, expected, 4e-6, &format!("{name}_gradient of layer {index}"));
            }
        }
    });
}

fn repeats_share_bits(runtime: &Runtime) {
    let model = sample(&mut fastrand::Rng::new()).unwrap();
    let [first, again] = [(); 2].map(|()| run(runtime, &model).unwrap());
    assert_same_bits(&again.dt_bias, &first.dt_bias, "dt_bias_gradient");
    for (again, first) in again.layers.iter().flatten().zip(first.layers.iter().flatten()) {
        assert_same_bits(again, first, "a layer's gradient");
    }
}

/// The float64 gradients themselves, against central differences of the step's loss.
fn float64_is_its_own_derivative() {
    let mut rng = fastrand::Rng::new();
    let model = sample(&mut rng).unwrap();
    let twin = Twin::new(&model);
    let gradients = twin.gradients();
    let mut directions = twin
        .layers
        .iter()
        .map(|layer| layer.leaves().map(|array| random::tensor(&mut rng, array.shape()).to_f64()));
    let directions: Vec<_> = directions.by_ref().collect();
    let dt_bias = random::tensor(&mut rng, &[HEADS]).to_f64();
    let moved = |step: f64| {
        let mut twin = Twin::new(&model);
        twin.dt_bias = &twin.dt_bias + &(&dt_bias * step);
        for (layer, direction) in twin.layers.iter_mut().zip(&directions) {
            layer.projected = &layer.projected + &(&direction[0] * step);
            layer.k = &layer.k + &(&direction[1] * step);
            layer.v = &layer.v + &(&direction[2] * step);
        }
        twin.loss()
    };
    let step = 1e-5;
    let found = (moved(step) - moved(-step)) / (2.0 * step);
    let mut expected = (&gradients.dt_bias * &dt_bias).sum();
    for (index, direction) in directions.iter().enumerate() {
        let leaves = twin.of_leaves(index, &gradients.layers[index]);
        expected += leaves.iter().zip(direction).map(|(g, d)| (g * d).sum()).sum::<f64>();
    }
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} {expected}");
}

fn run(runtime: &Runtime, model: &Model<HostTensor>) -> backslang::Result<Gradients<HostTensor>> {
    let model = model.upload(runtime)?;
    let mut recorder = runtime.recorder()?;
    let gradients = step::record(&mut recorder, &model)?;
    recorder.submit()?;
    gradients.download(runtime)
}

/// The step in float64, put together from the references of its operators.
struct Twin<'a> {
    model: &'a Model<HostTensor>,
    layers: Vec<TwinLayer>,
    dt_bias: ArrayD<f64>,
    output_gradient: ArrayD<f64>,
    options: Options,
    /// Where the rows' tokens lie: page and slot.
    slots: Vec<[usize; 2]>,
}

struct TwinLayer {
    projected: ArrayD<f64>,
    k: ArrayD<f64>,
    v: ArrayD<f64>,
    scan: Scan<ArrayD<f64>>,
}

/// What a layer's forward made.
struct Made {
    projected: ArrayD<f64>,
    outputs: preprocess::ForwardOutputs<ArrayD<f64>>,
    inputs: ForwardInputs<ArrayD<f64>>,
    attention: ForwardOutputs<ArrayD<f64>>,
}

impl TwinLayer {
    fn leaves(&self) -> [&ArrayD<f64>; 3] {
        [&self.projected, &self.k, &self.v]
    }
}

impl<'a> Twin<'a> {
    fn new(model: &'a Model<HostTensor>) -> Self {
        let layer = |layer: &Layer<HostTensor>| TwinLayer {
            projected: layer.projected.to_f64(),
            k: layer.k.to_f64(),
            v: layer.v.to_f64(),
            scan: Scan {
                z: layer.scan.z.to_f64(),
                dt: layer.scan.dt.to_f64(),
                adt: layer.scan.adt.to_f64(),
                trap: layer.scan.trap.to_f64(),
                angle: layer.scan.angle.to_f64(),
            },
        };
        let s = &model.schedule;
        let rows = s.sequence_ids.iter().zip(s.positions.iter().flatten());
        let slot = |(&sequence, &token): (&i128, &i128)| {
            let place = sequence as usize * s.table_width + token as usize / 4;
            [s.block_table[place] as usize, token as usize % 4]
        };
        Self {
            model,
            layers: model.layers.iter().map(layer).collect(),
            dt_bias: model.dt_bias.to_f64(),
            output_gradient: model.output_gradient.to_f64(),
            // As the step rounds it.
            options: Options::new(1.0 / (WIDTHS.state_size as f32).sqrt()),
            slots: rows.map(slot).collect(),
        }
    }

    fn forward(&self) -> Vec<Made> {
        let mut all: Vec<Made> = Vec::new();
        for layer in &self.layers {
            let mut projected = layer.projected.clone();
            if let Some(before) = all.last() {
                let x = before.attention.output.to_shape((projected.shape()[0], WIDTHS.inner_size));
                columns_of_x(&mut projected).assign(&x.unwrap());
            }
            let packed = preprocess::ForwardInputs {
                projected: projected.clone(),
                dt_bias: self.dt_bias.clone(),
            };
            let outputs =
                reference::mamba3::preprocess(&packed, &WIDTHS, &Parameters::default()).unwrap();
            let (mut k, mut v) = (layer.k.clone(), layer.v.clone());
            for (row, [page, slot]) in self.slots.iter().enumerate() {
                let place = |mut cache: ndarray::ArrayViewMutD<f64>, new: &ArrayD<f64>| {
                    let new = new.index_axis(Axis(0), row).to_owned();
                    cache
                        .index_axis_mut(Axis(0), *page)
                        .index_axis_mut(Axis(0), *slot)
                        .assign(&new);
                };
                place(k.view_mut(), &outputs.bh);
                place(v.view_mut(), &outputs.ch);
            }
            let q = outputs.x.clone().into_shape_with_order(self.output_gradient.shape()).unwrap();
            let inputs = ForwardInputs { q, history: History::Separate { k, v } };
            let attention =
                reference::attention::forward(&inputs, &self.model.schedule, &self.options)
                    .unwrap();
            all.push(Made { projected, outputs, inputs, attention });
        }
        all
    }

    /// What the gradients are those of.
    fn loss(&self) -> f64 {
        let all = self.forward();
        let last = all.last().map(|made| (&made.attention.output * &self.output_gradient).sum());
        let scans = all.iter().zip(&self.layers).map(|(made, layer)| {
            (&made.outputs.z * &layer.scan.z).sum()
                + (&made.outputs.dt * &layer.scan.dt).sum()
                + (&made.outputs.adt * &layer.scan.adt).sum()
                + (&made.outputs.trap * &layer.scan.trap).sum()
                + (&made.outputs.angle * &layer.scan.angle).sum()
        });
        last.unwrap_or(0.0) + scans.sum::<f64>()
    }

    fn gradients(&self) -> Gradients<ArrayD<f64>> {
        let all = self.forward();
        let mut output_gradient = self.output_gradient.clone();
        let mut dt_bias = ArrayD::zeros(self.dt_bias.shape());
        let mut layers = Vec::new();
        for (made, layer) in all.iter().zip(&self.layers).rev() {
            let inputs = BackwardInputs {
                q: made.inputs.q.clone(),
                history: made.inputs.history.clone(),
                output_gradient,
                statistics: None,
                output: None,
            };
            let outputs =
                reference::attention::backward(&inputs, &self.model.schedule, &self.options)
                    .unwrap();
            let [q, k, v] = [Gradient::Q, Gradient::K, Gradient::V].map(|wanted| {
                outputs.gradients.iter().find(|(g, _)| *g == wanted).unwrap().1.clone()
            });
            let gather = |cache: &ArrayD<f64>, shape: &[usize]| {
                let rows = self.slots.iter().flat_map(|[page, slot]| {
                    cache
                        .index_axis(Axis(0), *page)
                        .index_axis(Axis(0), *slot)
                        .iter()
                        .copied()
                        .collect::<Vec<_>>()
                });
                ArrayD::from_shape_vec(shape, rows.collect()).unwrap()
            };
            let scan = &layer.scan;
            let packed = preprocess::BackwardInputs {
                projected: made.projected.clone(),
                dt_bias: self.dt_bias.clone(),
                z_gradient: scan.z.clone(),
                x_gradient: q.into_shape_with_order(scan.z.shape()).unwrap(),
                bh_gradient: gather(&k, made.outputs.bh.shape()),
                ch_gradient: gather(&v, made.outputs.ch.shape()),
                dt_gradient: scan.dt.clone(),
                adt_gradient: scan.adt.clone(),
                trap_gradient: scan.trap.clone(),
                angle_gradient: scan.angle.clone(),
            };
            let packed =
                reference::mamba3::preprocess_backward(&packed, &Parameters::default()).unwrap();
            dt_bias += &packed.dt_bias_gradient;
            let mut projected = packed.projected_gradient;
            output_gradient = columns_of_x(&mut projected)
                .to_shape(self.output_gradient.shape())
                .unwrap()
                .to_owned();
            layers.push([projected, k, v]);
        }
        layers.reverse();
        let output = all.last().unwrap().attention.output.clone();
        Gradients { layers, dt_bias, output }
    }

    /// A layer's gradients where what they are those of is an input of the step: not of what the layer before or the
    /// append writes over.
    fn of_leaves(&self, index: usize, gradients: &[ArrayD<f64>; 3]) -> [ArrayD<f64>; 3] {
        let [mut projected, mut k, mut v] = gradients.clone();
        if index > 0 {
            columns_of_x(&mut projected).fill(0.0);
        }
        for [page, slot] in &self.slots {
            for cache in [&mut k, &mut v] {
                cache.index_axis_mut(Axis(0), *page).index_axis_mut(Axis(0), *slot).fill(0.0);
            }
        }
        [projected, k, v]
    }
}

fn columns_of_x(packed: &mut ArrayD<f64>) -> ndarray::ArrayViewMutD<'_, f64> {
    packed.slice_axis_mut(Axis(1), Slice::from(WIDTHS.inner_size..2 * WIDTHS.inner_size))
}
