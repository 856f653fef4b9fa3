//! `devices` and `kernels`: what there is.

use backslang::manifest::{Axis, Constant, KERNELS, Kernel};
use backslang::runtime::{self, DeviceInfo};
use serde_json::{Value, json};

use super::args::GlobalArgs;
use super::failure::Result;
use super::place::validation;
use super::report::Report;

/// The Vulkan devices, usable or not.
pub(crate) fn devices(args: &GlobalArgs) -> Result<Report> {
    let devices = runtime::devices(validation(args)?)?;
    let header = [
        "index", "name", "kind", "driver", "Vulkan", "subgroup", "matrices", "memory", "UUID",
        "lacks",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(devices.iter().map(device_row));
    let objects: Vec<_> = devices.iter().map(device_object).collect();
    let extra = Some(("devices", Value::from(objects)));
    Ok(Report { text: table(&rows), extra, ..Report::default() })
}

/// The driver and its version; some have none, or a name that ends in a space.
pub(crate) fn driver(device: &DeviceInfo) -> String {
    format!("{} {}", device.driver, device.driver_version).trim().into()
}

fn device_row(device: &DeviceInfo) -> Vec<String> {
    let matrices = device.matrices.names();
    let matrices = if matrices.is_empty() { "-".into() } else { matrices.join(", ") };
    let lacks = if device.usable() { "-".into() } else { device.lacks.join(", ") };
    vec![
        device.index.to_string(),
        device.name.clone(),
        device.kind.to_string(),
        driver(device),
        version(device),
        device.subgroup_size.to_string(),
        matrices,
        format!("{:.1} GiB", device.memory as f64 / f64::from(1 << 30)),
        device.uuid_text(),
        lacks,
    ]
}

fn device_object(device: &DeviceInfo) -> Value {
    json!({
        "index": device.index,
        "name": device.name,
        "uuid": device.uuid_text(),
        "kind": device.kind.name(),
        "software": device.software(),
        "driver": device.driver,
        "driver_version": device.driver_version,
        "api_version": version(device),
        "subgroup_size": device.subgroup_size,
        "subgroup_sizes": device.subgroup_sizes,
        "matrices": device.matrices.names(),
        "memory": device.memory,
        "max_storage_buffer_range": device.limits.max_storage_buffer_range,
        "max_workgroup_invocations": device.limits.max_compute_work_group_invocations,
        "max_workgroup_count": device.limits.max_compute_work_group_count,
        "timestamps": device.timestamps,
        "usable": device.usable(),
        "lacks": device.lacks,
    })
}

fn version(device: &DeviceInfo) -> String {
    device.api_version.map(|part| part.to_string()).join(".")
}

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
        text += &aligned(row, &widths);
    }
    text
}

/// One line of a table.
pub(crate) fn aligned(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, &width)| format!("{cell:width$}"));
    format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
}
