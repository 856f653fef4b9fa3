//! `--plan`: what a job would run, in numbers that need no device.

use backslang::HostTensor;
use backslang::kernels::attention::{Gradient, Plan};
use backslang::kernels::mamba3::preprocess_backward::DT_BIAS_CHUNK_ROWS;
use serde_json::{Map, Value, json};

use super::jobs::{AttentionJob, Job, Mamba3Job};
use super::report::Report;

/// Stands in for the part of a size that the device's subgroup size divides.
const LANES: &str = "subgroup size";

/// What would run.
#[derive(Debug, Default)]
struct Outline {
    sizes: Vec<(&'static str, usize)>,
    steps: Vec<Step>,
    /// Bytes in device memory: of what, and how many.
    bytes: Vec<(&'static str, usize)>,
}

/// One launch of a kernel.
#[derive(Debug)]
struct Step {
    kernel: &'static str,
    groups: [String; 2],
    constants: Vec<(&'static str, Value)>,
}

/// Describes the job; runs nothing.
pub(crate) fn describe(job: &Job) -> Report {
    let outline = match job {
        Job::Mamba3(job) => mamba3(job),
        Job::Attention(job) => attention(job),
    };
    Report { text: outline.text(), extra: Some(("plan", outline.json())), ..Report::default() }
}

fn mamba3(job: &Mamba3Job) -> Outline {
    let g = &job.geometry;
    let chunks = g.rows.div_ceil(DT_BIAS_CHUNK_ROWS);
    let sum = |chunks: usize| {
        let heads = format!("ceil({} / {LANES})", g.heads);
        step("mamba3_dt_bias_gradient", [chunks.to_string(), heads], vec![])
    };
    Outline {
        sizes: vec![
            ("rows", g.rows),
            ("inner_size", g.inner_size),
            ("bc_rows", g.bc_rows),
            ("state_size", g.state_size),
            ("heads", g.heads),
            ("rope_angles", g.rope_angles),
            ("projected_width", g.projected_width()),
        ],
        steps: vec![
            step("mamba3_preprocess_backward", [g.rows.to_string(), "1".into()], vec![]),
            sum(chunks),
            sum(1),
        ],
        bytes: vec![
            ("inputs", job.inputs.named().map(|(_, tensor)| bytes(tensor)).sum()),
            ("scratch", 4 * chunks * g.heads),
            ("outputs", g.backward_outputs().named().map(|(_, shape)| float_bytes(shape)).sum()),
        ],
    }
}

fn attention(job: &AttentionJob) -> Outline {
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
        ("active pages", plan.active_pages().len()),
        ("sequences", job.schedule.sequence_lengths.len()),
    ];
    let mut inputs = 0;
    job.inputs.as_ref().map(|_, tensor| inputs += bytes(tensor));
    let gradients =
        job.options.gradients.iter().map(|gradient| float_bytes(&g.gradient_shape(gradient)));
    let statistics = if g.statistics_columns == 3 { 0 } else { float_bytes(&g.statistics_shape()) };
    Outline {
        sizes,
        steps: attention_steps(job),
        bytes: vec![
            ("inputs", inputs),
            ("schedule", plan_bytes(plan)),
            ("outputs", gradients.sum::<usize>() + statistics),
        ],
    }
}

fn attention_steps(job: &AttentionJob) -> Vec<Step> {
    let (g, options) = (&job.geometry, &job.options);
    let mut steps = Vec::new();
    if g.statistics_columns < 3 || options.gradients.any_query() {
        let constants = vec![
            ("causal", json!(options.causal)),
            ("given_columns", json!(g.statistics_columns)),
            ("need_q", json!(options.gradients.contains(Gradient::Q))),
            ("need_q_position", json!(options.gradients.contains(Gradient::QPosition))),
        ];
        let groups = [g.queries.to_string(), g.heads.to_string()];
        steps.push(step("query_backward", groups, constants));
    }
    if !options.gradients.any_history() {
        return steps;
    }
    let mut pages = g.pages;
    if options.compact_history {
        pages = job.plan.active_pages().len();
        for gradient in options.gradients.iter().filter(|gradient| gradient.is_history()) {
            let groups = [job.plan.inactive_pages().len().to_string(), "1".into()];
            let target = vec![("target", json!(gradient.output_name()))];
            steps.push(step("clear_pages", groups, target));
        }
    }
    let constants = vec![
        ("causal", json!(options.causal)),
        ("prune_queries", json!(options.prune_queries)),
        ("cache_history", json!(options.cache_history)),
        ("compact_history", json!(options.compact_history)),
        ("query_block_rows", json!(options.query_block_rows)),
    ];
    let groups = [(pages * g.page_size).to_string(), g.kv_heads.to_string()];
    steps.push(step("history_backward", groups, constants));
    steps
}

fn step(kernel: &'static str, groups: [String; 2], constants: Vec<(&'static str, Value)>) -> Step {
    Step { kernel, groups, constants }
}

fn bytes(tensor: &HostTensor) -> usize {
    tensor.bytes().len()
}

fn float_bytes(shape: &[usize]) -> usize {
    4 * shape.iter().product::<usize>()
}

fn plan_bytes(plan: &Plan) -> usize {
    let words = [plan.metadata(), plan.inverse(), plan.active_pages(), plan.inactive_pages()];
    4 * words.iter().map(|words| words.len()).sum::<usize>()
}

impl Outline {
    fn text(&self) -> String {
        let list = |pairs: &[(&str, usize)]| {
            pairs.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("sizes: {}\n", list(&self.sizes));
        for Step { kernel, groups: [x, y], constants } in &self.steps {
            text += &format!("run {kernel}: {x} x {y} workgroups");
            for (name, value) in constants {
                text += &format!(", {name} {}", value.as_str().unwrap_or(&value.to_string()));
            }
            text.push('\n');
        }
        text + &format!("bytes: {}\n", list(&self.bytes))
    }

    fn json(&self) -> Value {
        let object = |pairs: &[(&'static str, usize)]| {
            pairs.iter().map(|&(name, n)| (name.into(), json!(n))).collect::<Map<_, _>>()
        };
        let step = |step: &Step| {
            let constants: Map<_, _> = step
                .constants
                .iter()
                .map(|(name, value)| ((*name).into(), value.clone()))
                .collect();
            json!({ "kernel": step.kernel, "workgroups": step.groups, "constants": constants })
        };
        json!({
            "sizes": object(&self.sizes),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "bytes": object(&self.bytes),
        })
    }
}
