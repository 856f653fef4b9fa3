//! Which device to take.

use std::cmp::Reverse;
use std::str::FromStr;

use super::info::{DeviceInfo, DeviceKind};
use crate::error::{Error, Rejected, Result};

/// How a device is chosen.
///
/// As text: an index, a UUID, or a part of the name in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSelector {
    /// The best usable device: GPUs before software, discrete before integrated.
    #[default]
    Auto,
    /// The device at this place of the loader's list.
    Index(usize),
    /// The device of this UUID.
    Uuid([u8; 16]),
    /// The only device whose name contains this text, in any case.
    Name(String),
}

impl FromStr for DeviceSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::Parameter {
                name: "device",
                expected: "an index, a UUID or a part of the device's name".into(),
                found: "nothing".into(),
            });
        }
        if let Some(uuid) = parse_uuid(text) {
            return Ok(Self::Uuid(uuid));
        }
        Ok(text.parse().map_or_else(|_| Self::Name(text.into()), Self::Index))
    }
}

/// 32 hexadecimal digits, bare or grouped 8-4-4-4-12.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let grouped = text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
    let digits = if grouped { text.replace('-', "") } else { text.to_owned() };
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// A choice among devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Which of the devices.
    pub(super) position: usize,
    /// What the user should know of the choice.
    pub(super) note: Option<String>,
}

/// Chooses among `devices`.
pub(super) fn choose(devices: &[DeviceInfo], selector: &DeviceSelector) -> Result<Choice> {
    match selector {
        DeviceSelector::Auto => best(devices),
        DeviceSelector::Index(index) => {
            one(devices, &format!("index {index}"), |d| d.index == *index)
        }
        DeviceSelector::Uuid(uuid) => {
            let text = format!("UUID {:032x}", u128::from_be_bytes(*uuid));
            one(devices, &text, |d| d.uuid == *uuid)
        }
        DeviceSelector::Name(part) => {
            let part = part.to_lowercase();
            one(devices, &part, |d| d.name.to_lowercase().contains(&part))
        }
    }
}

fn best(devices: &[DeviceInfo]) -> Result<Choice> {
    let best = devices
        .iter()
        .enumerate()
        .filter(|(_, d)| d.usable())
        .min_by_key(|(_, d)| (rank(d.kind), Reverse(d.memory), d.index));
    let Some((position, device)) = best else {
        return Err(Error::NoDevice { asked: None, rejected: reasons(devices, |_| true) });
    };
    let note = device.software().then(|| {
        let others = reasons(devices, |d| !d.usable());
        let why = match others.first() {
            None => "there is no GPU".to_owned(),
            Some(other) => format!("{} {}", other.device, other.reason),
        };
        format!("{} computes on the CPU, in software: {why}", device.name)
    });
    Ok(Choice { position, note })
}

/// The indices of all devices to compute on together: GPUs, or what there is where there is none.
pub(super) fn all(devices: &[DeviceInfo]) -> Result<Vec<usize>> {
    let usable = || devices.iter().filter(|d| d.usable());
    let gpus = usable().any(|d| !d.software());
    let mut taken: Vec<&DeviceInfo> = Vec::new();
    for device in usable().filter(|d| d.software() != gpus) {
        // A driver without UUIDs says zeros.
        let same = |other: &&DeviceInfo| other.uuid == device.uuid && device.uuid != [0; 16];
        if !taken.iter().any(same) {
            taken.push(device);
        }
    }
    if taken.is_empty() {
        let rejected = reasons(devices, |_| true);
        return Err(Error::NoDevice { asked: None, rejected });
    }
    Ok(taken.into_iter().map(|device| device.index).collect())
}

/// Lower is better.
fn rank(kind: DeviceKind) -> u8 {
    match kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Other => 3,
        DeviceKind::Cpu => 4,
    }
}

/// The one usable device that fits what was asked for.
fn one(devices: &[DeviceInfo], asked: &str, fits: impl Fn(&DeviceInfo) -> bool) -> Result<Choice> {
    let found: Vec<_> = devices.iter().enumerate().filter(|(_, d)| fits(d)).collect();
    match found[..] {
        [(position, device)] if device.usable() => Ok(Choice { position, note: None }),
        [] => Err(Error::NoDevice {
            asked: Some(asked.into()),
            rejected: devices
                .iter()
                .map(|d| Rejected { device: label(d), reason: "does not match".into() })
                .collect(),
        }),
        [_] => Err(Error::NoDevice { asked: Some(asked.into()), rejected: reasons(devices, fits) }),
        _ => Err(Error::NoDevice {
            asked: Some(asked.into()),
            rejected: found
                .iter()
                .map(|(_, d)| Rejected {
                    device: label(d),
                    reason: "one of several that match; give its index or UUID".into(),
                })
                .collect(),
        }),
    }
}

fn reasons(devices: &[DeviceInfo], of: impl Fn(&DeviceInfo) -> bool) -> Vec<Rejected> {
    devices
        .iter()
        .filter(|d| of(d))
        .map(|d| Rejected { device: label(d), reason: format!("lacks {}", d.lacks.join(", ")) })
        .collect()
}

fn label(device: &DeviceInfo) -> String {
    format!("{} ({})", device.index, device.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::info::tests::device;

    fn lacking(mut device: DeviceInfo, what: &str) -> DeviceInfo {
        device.lacks.push(what.into());
        device
    }

    #[test]
    fn selectors_parse() {
        let parse = |text: &str| text.parse::<DeviceSelector>().unwrap();
        assert_eq!(parse("3"), DeviceSelector::Index(3));
        assert_eq!(parse(" llvm "), DeviceSelector::Name("llvm".into()));
        let uuid: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(parse("01020304-0506-0708-090A-0b0c0d0e0f10"), DeviceSelector::Uuid(uuid));
        assert_eq!(parse("0102030405060708090a0b0c0d0e0f10"), DeviceSelector::Uuid(uuid));
        assert_eq!(parse("10".repeat(16).as_str()), DeviceSelector::Uuid([0x10; 16]));
        assert!(matches!(parse("01020304-05060-708-090A-0b0c0d0e0f10"), DeviceSelector::Name(_)));
        assert!("  ".parse::<DeviceSelector>().is_err());
    }

    #[test]
    fn a_gpu_goes_before_software() {
        let devices = [
            device(0, "llvmpipe", DeviceKind::Cpu),
            device(1, "iris", DeviceKind::Integrated),
            lacking(device(2, "old", DeviceKind::Discrete), "Vulkan 1.3"),
        ];
        let choice = choose(&devices, &DeviceSelector::Auto).unwrap();
        assert_eq!(choice, Choice { position: 1, note: None });
        let devices = [devices[0].clone(), devices[2].clone()];
        let choice = choose(&devices, &DeviceSelector::Auto).unwrap();
        assert_eq!(choice.position, 0);
        assert!(choice.note.unwrap().contains("2 (old) lacks Vulkan 1.3"));
        assert!(choose(&devices[..1], &DeviceSelector::Auto).unwrap().note.is_some());
    }

    #[test]
    fn all_are_the_usable_gpus_each_once() {
        let mut devices = vec![
            device(0, "llvmpipe", DeviceKind::Cpu),
            device(1, "H200", DeviceKind::Discrete),
            lacking(device(2, "old", DeviceKind::Discrete), "Vulkan 1.3"),
            device(3, "H200", DeviceKind::Discrete),
            device(4, "H200 by another driver", DeviceKind::Discrete),
            device(5, "iris", DeviceKind::Integrated),
            device(6, "SwiftShader", DeviceKind::Cpu),
        ];
        devices[4].uuid = devices[3].uuid;
        assert_eq!(all(&devices).unwrap(), [1, 3, 5]);
        devices.retain(|d| d.software() || !d.usable());
        assert_eq!(all(&devices).unwrap(), [0, 6]);
        devices.retain(|d| !d.usable());
        assert!(all(&devices).unwrap_err().to_string().contains("lacks Vulkan 1.3"));
    }

    #[test]
    fn of_equals_the_one_with_more_memory_is_taken_then_the_first() {
        let mut devices = [0, 1, 2].map(|index| device(index, "GPU", DeviceKind::Discrete));
        let taken =
            |devices: &[DeviceInfo]| choose(devices, &DeviceSelector::Auto).unwrap().position;
        assert_eq!(taken(&devices), 0);
        devices[1].memory *= 2;
        assert_eq!(taken(&devices), 1);
    }

    #[test]
    fn software_is_taken_when_asked_for_without_a_note() {
        let devices =
            [device(0, "H200", DeviceKind::Discrete), device(1, "llvmpipe", DeviceKind::Cpu)];
        for text in ["1", "LLVM", "01010101-0101-0101-0101-010101010101"] {
            let choice = choose(&devices, &text.parse().unwrap()).unwrap();
            assert_eq!(choice, Choice { position: 1, note: None });
        }
    }

    #[test]
    fn an_ambiguous_name_lists_what_fits() {
        let devices =
            [device(0, "A100", DeviceKind::Discrete), device(1, "A100", DeviceKind::Discrete)];
        let error = choose(&devices, &DeviceSelector::Name("a1".into())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("0 (A100)") && text.contains("1 (A100)"), "{text}");
    }

    #[test]
    fn what_is_not_there_or_not_usable_says_why() {
        let devices = [lacking(device(0, "old", DeviceKind::Discrete), "synchronization2")];
        let error = |s: &str| choose(&devices, &s.parse().unwrap()).unwrap_err().to_string();
        assert!(error("0").contains("synchronization2"));
        assert!(error("7").contains("index 7"));
        let none = choose(&devices, &DeviceSelector::Auto).unwrap_err();
        assert!(none.to_string().contains("lacks synchronization2"));
        assert!(matches!(
            choose(&[], &DeviceSelector::Auto),
            Err(Error::NoDevice { asked: None, rejected }) if rejected.is_empty()
        ));
    }
}
