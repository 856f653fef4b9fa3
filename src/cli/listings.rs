//! `devices` and `kernels`: what there is.

use backslang::manifest::{Axis, Constant, KERNELS, Kernel};
use serde_json::{Value, json};

use super::report::Report;

/// The kernels of this build.
pub(crate) fn kernels() -> Report {
    let header =
        ["name", "dtype", "domain", "variant", "status", "workgroup", "push bytes", "constants"];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(KERNELS.iter().map(|kernel| kernel_row(kernel)));
    let objects: Vec<_> = KERNELS.iter().map(|kernel| kernel_object(kernel)).collect();
    let extra = Some(("kernels", Value::from(objects)));
    Report { text: table(&rows), extra, ..Report::default() }
}

fn kernel_row(kernel: &Kernel) -> Vec<String> {
    let constants: Vec<_> = kernel.constants.iter().map(|constant| constant.name).collect();
    vec![
        kernel.name.into(),
        kernel.dtype.into(),
        kernel.domain.into(),
        kernel.variant.into(),
        kernel.status.into(),
        kernel.workgroup_size.map(|axis| axis_text(kernel, axis)).join(" x "),
        kernel.push_size.to_string(),
        constants.join(", "),
    ]
}

fn kernel_object(kernel: &Kernel) -> Value {
    let constant = |constant: &Constant| {
        let kind = format!("{:?}", constant.kind).to_lowercase();
        json!({ "name": constant.name, "id": constant.id, "type": kind })
    };
    json!({
        "name": kernel.name,
        "dtype": kernel.dtype,
        "domain": kernel.domain,
        "variant": kernel.variant,
        "status": kernel.status,
        "source": kernel.source,
        "entry_point": kernel.entry_point,
        "workgroup": kernel.workgroup_size.map(|axis| axis_text(kernel, axis)),
        "push_bytes": kernel.push_size,
        "constants": kernel.constants.iter().map(constant).collect::<Vec<_>>(),
    })
}

/// A number, or the name of the constant that says it.
fn axis_text(kernel: &Kernel, axis: Axis) -> String {
    match axis {
        Axis::Fixed(size) => size.to_string(),
        Axis::Constant(id) => {
            let constant = kernel.constants.iter().find(|constant| constant.id == id);
            constant.map_or_else(|| format!("constant {id}"), |constant| constant.name.into())
        }
    }
}

/// Columns as wide as their widest cell; the last one is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
