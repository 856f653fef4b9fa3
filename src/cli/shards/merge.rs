//! `merge`: the outputs of a whole call from its parts.

use std::path::{Path, PathBuf};

use backslang::Dtype;
use backslang::shard::{Assembly, PartArray, Shard, Values};

use super::manifest::{Entry, Manifest, hash};
use super::{Device, MANIFEST};
use crate::cli::args::MergeArgs;
use crate::cli::commands::is_one_of;
use crate::cli::failure::{Failure, Result};
use crate::cli::files::{Catalog, Entry as File, OutputArray, Spelling, Target, Wanted, text_in};
use crate::cli::report::Report;
use crate::cli::talk::Talk;

/// A part that is to be joined.
struct Found<'a> {
    path: &'a Path,
    manifest: Manifest,
    arrays: Catalog,
}

/// Joins parts, once all that their manifests say has been checked.
pub(crate) fn merge(args: &MergeArgs, talk: &Talk) -> Result<Report> {
    let step = talk.step("reading the manifests");
    let parts = args.parts.iter().map(|path| Found::open(path)).collect::<Result<Vec<_>>>()?;
    let parts = complete(parts)?;
    for part in &parts {
        part.check_sizes()?;
    }
    check_units(&parts)?;
    drop(step);
    note_devices(&parts, talk);
    let target = Target::resolve(&args.output)?;
    keep_parts(&args.parts, &args.output)?;
    let Some(first) = parts.first() else { return Ok(Report::default()) };
    let target = target.open(first.manifest.outputs.iter().map(|e| e.output.name.as_str()))?;
    let outputs = first.manifest.outputs.iter().map(|entry| entry.output.output());
    let outputs = outputs.collect::<Result<Vec<_>, String>>();
    let mut assembly = Assembly::new(outputs.map_err(|words| first.wrong(&words))?)
        .map_err(|error| first.wrong(&error.to_string()))?;
    let mut spellings = Vec::new();
    for part in &parts {
        let _step = talk.step(&format!("reading {}", part.path.display()));
        for entry in &part.manifest.outputs {
            let (array, spelling) = part.read(entry)?;
            spellings.push(spelling);
            assembly.add(array).map_err(|error| part.wrong(&error.to_string()))?;
        }
    }
    let whole = assembly.finish().map_err(|error| first.wrong(&error.to_string()))?;
    let arrays = whole.into_iter().zip(spellings);
    let arrays =
        arrays.map(|((name, tensor), spelling)| OutputArray::floats(&name, tensor, spelling));
    let _step = talk.step(&format!("writing {}", args.output.display()));
    let outputs = target.write(&arrays.collect::<Vec<_>>())?;
    Ok(Report { outputs, ..Report::default() })
}

impl<'a> Found<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let failure = |error| Failure::file("part", path.display(), error);
        let unread = |error| Failure::file("part", path.join(MANIFEST).display(), error);
        let text = text_in(path, MANIFEST).map_err(unread)?;
        let Some(text) = text else {
            let message =
                format!("part ({}): expected what --shard wrote, found no", path.display());
            return Err(shards(format!("{message} {MANIFEST}")));
        };
        let mut arrays = Catalog::default();
        arrays.add(path).map_err(failure)?;
        let wrong = |words: &str| shards(format!("part ({}): {MANIFEST}: {words}", path.display()));
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        // The version first: another one's manifest may have other keys.
        let version = &value["version"];
        if *version != env!("CARGO_PKG_VERSION") {
            let expected = env!("CARGO_PKG_VERSION");
            return Err(wrong(&format!("expected version {expected}, found {version}")));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| wrong(&error.to_string()))?;
        let found = Self { path, manifest, arrays };
        let super::manifest::Part { index, count } = found.manifest.shard;
        Shard::new(index, count).map_err(|error| found.wrong(&error.to_string()))?;
        Ok(found)
    }

    fn wrong(&self, words: &str) -> Failure {
        shards(format!("part ({}): {words}", self.path.display()))
    }

    fn file(&self, entry: &Entry) -> Result<&File> {
        let name = &entry.output.array;
        self.arrays.get(name).ok_or_else(|| self.wrong(&format!("array `{name}` is missing")))
    }

    /// Whether all arrays are there, and as large as the manifest says: found before anything is read.
    fn check_sizes(&self) -> Result<()> {
        for entry in &self.manifest.outputs {
            let (file, name) = (self.file(entry)?, &entry.output.array);
            let output = entry.output.output().map_err(|words| self.wrong(&words))?;
            let fault = |error| Failure::file(&format!("array `{name}`"), file, error);
            let found = file.shape().map_err(fault)?;
            let [start, end] = entry.units;
            let units = end.checked_sub(start).filter(|_| end <= output.units());
            let Some(units) = units else {
                return Err(self.wrong(&format!("`{name}` has no units {start} to {end}")));
            };
            let expected = output.part_shape(units);
            if found != expected {
                let message =
                    format!("array `{name}` ({file}): expected {expected:?} as {MANIFEST} says");
                return Err(shards(format!("{message}, found shape {found:?}")));
            }
        }
        Ok(())
    }

    fn read(&self, entry: &Entry) -> Result<(PartArray, Spelling)> {
        let (file, name) = (self.file(entry)?, &entry.output.array);
        let fault = |error| Failure::file(&format!("array `{name}`"), file, error);
        let (values, spelling) = match &entry.output.summed {
            Some(summed) if summed.dtype == "f64" => {
                let (values, spelling) = file.doubles().map_err(fault)?;
                let width = entry.output.shape.iter().product();
                (Values::Doubles { width, values }, spelling)
            }
            _ => {
                let output = entry.output.output().map_err(|words| self.wrong(&words))?;
                let dtype = if entry.output.summed.is_some() { Dtype::F32 } else { output.dtype };
                let (tensor, spelling) = file.floats(Wanted::Always(dtype)).map_err(fault)?;
                (Values::Tensor(tensor), spelling)
            }
        };
        if hash(&values) != entry.sha256 {
            let message =
                format!("array `{name}` ({file}): expected the elements that {MANIFEST} has");
            return Err(shards(format!("{message} the sha256 of, found others")));
        }
        let [start, end] = entry.units;
        Ok((PartArray { name: name.clone(), units: start..end, values }, spelling))
    }
}

/// All parts of one call, in order.
fn complete(mut parts: Vec<Found<'_>>) -> Result<Vec<Found<'_>>> {
    parts.sort_by_key(|part| part.manifest.shard.index);
    for pair in parts.windows(2) {
        let [first, second] = pair else { continue };
        if let Some(differs) = difference(&first.manifest, &second.manifest) {
            let (path, other) = (second.path.display(), first.path.display());
            return Err(shards(format!(
                "part ({path}): expected what part ({other}) has: {differs}"
            )));
        }
        if first.manifest.shard == second.manifest.shard {
            let shard = first.manifest.shard.index;
            let message = format!("part ({}): expected each shard once", second.path.display());
            let count = first.manifest.shard.count;
            return Err(shards(format!(
                "{message}, found {shard}/{count} as in part ({})",
                first.path.display()
            )));
        }
    }
    let count = parts.first().map_or(0, |part| part.manifest.shard.count);
    if parts.len() < count {
        let there = |index: &usize| {
            parts.binary_search_by_key(index, |part| part.manifest.shard.index).is_ok()
        };
        let missing = (0..count).filter(|index| !there(index)).collect::<Vec<_>>();
        let list = missing.iter().take(8).map(|index| format!("{index}/{count}"));
        let list = list.collect::<Vec<_>>().join(", ");
        let more = if missing.len() > 8 {
            format!(" and {} more", missing.len() - 8)
        } else {
            String::new()
        };
        return Err(shards(format!("expected all {count} shards, missing {list}{more}")));
    }
    Ok(parts)
}

/// Whether the parts have every unit once: found before memory is asked for.
fn check_units(parts: &[Found<'_>]) -> Result<()> {
    let Some(first) = parts.first() else { return Ok(()) };
    for (index, entry) in first.manifest.outputs.iter().enumerate() {
        let output = entry.output.output().map_err(|words| first.wrong(&words))?;
        // In the order of the parts; empty ones may lie anywhere.
        let ranges = parts.iter().filter_map(|part| part.manifest.outputs.get(index));
        let mut ranges = ranges.map(|entry| entry.units).filter(|[start, end]| start < end);
        let end = ranges.try_fold(0, |end, units| (units[0] == end).then_some(units[1]));
        if end != Some(output.units()) {
            let (all, name) = (output.units(), &output.name);
            return Err(shards(format!(
                "expected parts with each of the {all} units of `{name}` once"
            )));
        }
    }
    Ok(())
}

/// How manifests of one call's parts may not differ.
fn difference(first: &Manifest, second: &Manifest) -> Option<String> {
    let differ = |what: &str, first: &str, second: &str| {
        (first != second).then(|| format!("{what} {first}, found {second}"))
    };
    let reference = |manifest: &Manifest| manifest.devices.iter().any(Device::is_reference);
    let words = |manifest| if reference(manifest) { "the reference" } else { "a device" };
    let none = String::from("none");
    let option = |(first, second): (_, _)| -> Option<String> {
        let (a, b): (&Manifest, &Manifest) = (first, second);
        let names = a.identity.options.keys().chain(b.identity.options.keys());
        names.into_iter().find_map(|name| {
            let of = |m: &Manifest| m.identity.options.get(name).unwrap_or(&none).clone();
            differ(name, &of(a), &of(b))
        })
    };
    let input = || {
        let (a, b) = (&first.identity.inputs, &second.identity.inputs);
        let name = a.keys().chain(b.keys()).find(|&name| a.get(name) != b.get(name))?;
        Some(match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) if (&a.shape, &a.dtype) != (&b.shape, &b.dtype) => {
                let (found, dtype) = (&b.shape, &b.dtype);
                format!("the input `{name}` {} {:?}, found {dtype} {found:?}", a.dtype, a.shape)
            }
            (Some(_), Some(_)) => format!("the same elements of the input `{name}`"),
            (None, _) => format!("no input `{name}`"),
            (_, None) => format!("the input `{name}`"),
        })
    };
    let outputs = || {
        let names =
            |m: &Manifest| m.outputs.iter().map(|e| e.output.name.clone()).collect::<Vec<_>>();
        let list = |m| names(m).join(", ");
        differ("the outputs", &list(first), &list(second)).or_else(|| {
            let mut pairs = first.outputs.iter().zip(&second.outputs);
            let other = pairs.find(|(a, b)| a.output != b.output)?;
            Some(format!("the same layout of `{}`", other.0.output.name))
        })
    };
    let count = |m: &Manifest| format!("N = {}", m.shard.count);
    differ("the command", &first.command, &second.command)
        .or_else(|| differ("shards I/N with", &count(first), &count(second)))
        .or_else(|| differ("results of", words(first), words(second)))
        .or_else(|| option((first, second)))
        .or_else(input)
        .or_else(outputs)
}

/// Other devices may round otherwise.
fn note_devices(parts: &[Found<'_>], talk: &Talk) {
    let devices = parts.iter().flat_map(|part| part.manifest.devices.clone());
    talk_of_kinds(&devices.collect::<Vec<_>>(), talk);
}

/// Says so when devices are not alike.
pub(crate) fn talk_of_kinds(devices: &[Device], talk: &Talk) {
    let mut kinds: Vec<&Device> = Vec::new();
    for device in devices {
        if !kinds.contains(&device) {
            kinds.push(device);
        }
    }
    if kinds.len() > 1 {
        let list = kinds.iter().map(|device| device.to_string()).collect::<Vec<_>>().join("; ");
        talk.note(&format!(
            "the bits may differ from those of one device, as these differ: {list}"
        ));
    }
}

/// The parts stay: a result in the place of one would leave neither.
fn keep_parts(parts: &[PathBuf], output: &Path) -> Result<()> {
    if is_one_of(output, parts.iter().cloned()) {
        let message = "--output: expected another place than those of the parts, found";
        return Err(Failure::usage(format!("{message} `{}`", output.display())));
    }
    Ok(())
}

/// Parts that do not belong together, or are not whole.
fn shards(message: String) -> Failure {
    Failure::input("shards", message)
}
