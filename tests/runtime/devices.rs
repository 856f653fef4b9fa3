//! The list of devices and the choice among them.

use backslang::runtime::DeviceSelector;

use super::*;

pub(crate) const TESTS: &[Test] = &[("the_device_is_usable", the_device_is_usable)];

pub(crate) const EXCLUSIVE: &[Test] = &[
    ("a_device_is_found_by_index_uuid_and_name", a_device_is_found_by_index_uuid_and_name),
    ("every_subgroup_size_can_be_had", every_subgroup_size_can_be_had),
];

fn the_device_is_usable(runtime: &Runtime) -> Outcome {
    let device = runtime.device();
    assert!(device.usable() && !device.name.is_empty() && !device.driver.is_empty(), "{device:?}");
    let [least, most] = device.subgroup_sizes;
    assert!((least..=most).contains(&runtime.lanes()));
    assert!(device.limits.max_storage_buffer_range > 0 && device.memory > 0);
    let devices = backslang::runtime::devices(gpu::options().validation)?;
    assert!(devices.iter().any(|d| d.uuid == device.uuid && d.index == device.index));
    Ok(())
}

fn a_device_is_found_by_index_uuid_and_name(runtime: &Runtime) -> Outcome {
    let device = runtime.device();
    for text in [device.index.to_string(), device.uuid_text(), device.name.to_uppercase()] {
        let found = open(|o| o.device = text.parse().unwrap())?;
        assert_eq!(found.device().uuid, device.uuid, "{text}");
        assert!(found.notes().is_empty(), "{:?}", found.notes());
        found.finish()?;
    }
    let missing = open(|o| o.device = DeviceSelector::Name("no such device".into()));
    assert!(matches!(missing.err(), Some(Error::NoDevice { asked: Some(_), .. })));
    Ok(())
}

fn every_subgroup_size_can_be_had(runtime: &Runtime) -> Outcome {
    let [least, most] = runtime.device().subgroup_sizes;
    for lanes in (0..8).map(|i| 1 << i) {
        match open(|o| o.lanes = Some(lanes)) {
            Ok(runtime) => {
                assert_eq!(runtime.lanes(), lanes);
                runtime.finish()?;
            }
            Err(Error::Unsupported { reason, .. }) => {
                assert!(!(least..=most).contains(&lanes), "{lanes}: {reason}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
