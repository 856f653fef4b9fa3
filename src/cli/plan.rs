//! `--plan`: what a job would run, in numbers that need no device.

use backslang::HostTensor;
use backslang::kernels::attention::{Plan, backward};
use backslang::kernels::mamba3::preprocess::dtype_of;
use backslang::kernels::mamba3::preprocess_backward;
use backslang::kernels::{Launch, Target};
use backslang::manifest::{Constant, Scalar};
use serde_json::{Map, Value, json};

use super::failure::Result;
use super::jobs::{AttentionJob, Job, Mamba3Job};
use super::report::Report;

/// What would run.
#[derive(Debug, Default)]
struct Outline {
    sizes: Vec<(&'static str, usize)>,
    launches: Vec<Launch>,
    /// Bytes in device memory: of what, and how many.
    bytes: Vec<(&'static str, usize)>,
}

/// Describes the job; runs nothing.
pub(crate) fn describe(job: &Job) -> Result<Report> {
    let outline = match job {
        Job::Mamba3(job) => mamba3(job)?,
        Job::Attention(job) => attention(job)?,
    };
    Ok(Report { text: outline.text(), extra: Some(("plan", outline.json())), ..Report::default() })
}

fn mamba3(job: &Mamba3Job) -> Result<Outline> {
    let g = &job.geometry;
    let dtype = job.inputs.projected.dtype();
    let output = |(name, shape): (&str, &Vec<usize>)| dtype_of(name, dtype).size() * count(shape);
    Ok(Outline {
        sizes: vec![
            ("rows", g.rows),
            ("inner_size", g.inner_size),
            ("bc_rows", g.bc_rows),
            ("state_size", g.state_size),
            ("heads", g.heads),
            ("rope_angles", g.rope_angles),
            ("projected_width", g.projected_width()),
        ],
        launches: preprocess_backward::launches(g, dtype, Target::TYPICAL)?,
        bytes: vec![
            ("inputs", job.inputs.named().map(|(_, tensor)| bytes(tensor)).sum()),
            ("outputs", g.backward_outputs().named().map(output).sum()),
        ],
    })
}

fn attention(job: &AttentionJob) -> Result<Outline> {
    let (g, plan) = (&job.geometry, &job.plan);
    let sizes = vec![
        ("queries", g.queries),
        ("heads", g.heads),
        ("kv_heads", g.kv_heads),
        ("key_dim", g.key_dim),
        ("value_dim", g.value_dim),
        ("position_dim", g.position_dim),
        ("page_size", g.page_size),
        ("pages", g.pages),
        ("active_pages", plan.active_pages().len()),
        ("sequences", job.schedule.sequence_lengths.len()),
    ];
    let shapes = job.inputs.as_ref().map(|_, tensor| tensor.into());
    let mut inputs = 0;
    job.inputs.as_ref().map(|_, tensor| inputs += bytes(tensor));
    let size = job.inputs.q.dtype().size();
    let gradients = job.options.gradients.iter().map(|of| size * count(&g.gradient_shape(of)));
    let statistics = if g.statistics_columns == 3 { 0 } else { 4 * count(&g.statistics_shape()) };
    Ok(Outline {
        sizes,
        launches: backward::launches(&shapes, plan, &job.options, Target::TYPICAL)?,
        bytes: vec![
            ("inputs", inputs),
            ("schedule", plan_bytes(plan)),
            ("outputs", gradients.sum::<usize>() + statistics),
        ],
    })
}

fn bytes(tensor: &HostTensor) -> usize {
    tensor.bytes().len()
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

fn plan_bytes(plan: &Plan) -> usize {
    let words = [plan.metadata(), plan.inverse(), plan.active_pages(), plan.inactive_pages()];
    4 * words.iter().map(|words| words.len()).sum::<usize>()
}

/// The specialization constants by name; those of type bool as such.
fn constants(launch: &Launch) -> Vec<(&'static str, Value)> {
    let value = |constant: &Constant, bits: u32| match constant.kind {
        Scalar::Bool => json!(bits != 0),
        _ => json!(bits),
    };
    let pairs = launch.kernel.constants.iter().zip(&launch.constants);
    pairs.map(|(constant, &bits)| (constant.name, value(constant, bits))).collect()
}

impl Outline {
    fn text(&self) -> String {
        let list = |pairs: &[(&str, usize)]| {
            pairs.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("sizes: {}\n", list(&self.sizes));
        for launch in &self.launches {
            let [x, y] = launch.groups;
            text += &format!("run {}: {x} x {y} workgroups", launch.kernel.name);
            for (name, value) in constants(launch) {
                text += &format!(", {name} {value}");
            }
            text.push('\n');
        }
        let Target { lanes, max_workgroup } = Target::TYPICAL;
        text += &format!(
            "for subgroups of {lanes} and workgroups of at most {max_workgroup} invocations\n"
        );
        text + &format!("bytes: {}\n", list(&self.bytes))
    }

    fn json(&self) -> Value {
        let object = |pairs: &[(&'static str, usize)]| {
            pairs.iter().map(|&(name, n)| (name.into(), json!(n))).collect::<Map<_, _>>()
        };
        let step = |launch: &Launch| {
            let constants: Map<_, _> =
                constants(launch).into_iter().map(|(name, value)| (name.into(), value)).collect();
            json!({ "kernel": launch.kernel.name, "workgroups": launch.groups, "constants": constants })
        };
        json!({
            "sizes": object(&self.sizes),
            "steps": self.launches.iter().map(step).collect::<Vec<_>>(),
            "bytes": object(&self.bytes),
        })
    }
}
