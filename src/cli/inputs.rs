//! The arrays of a call: gathered, looked up by name, and checked on the way.

use std::collections::BTreeMap;
use std::path::Path;

use backslang::{Dtype, HostTensor};

use super::alike;
use super::args::InputArgs;
use super::failure::{Failure, Result};
#[cfg(feature = "slang")]
use super::files::Numbers;
use super::files::{Catalog, Entry, FileError, Spelling, Wanted, excerpt};
use super::progress::Step;
use super::talk::Talk;

/// The arrays that were given, and what has been learnt of those that were read.
#[derive(Debug)]
pub(crate) struct Inputs {
    catalog: Catalog,
    /// Names that were spelled out with `--in`.
    spelled: Vec<String>,
    /// What the next array of the call's element type is to be.
    wanted: Wanted,
    spellings: BTreeMap<&'static str, Spelling>,
    talk: Talk,
}

impl Inputs {
    /// Finds the arrays; reads none yet.
    pub(crate) fn open(args: &InputArgs, talk: &Talk) -> Result<Self> {
        let mut catalog = Catalog::default();
        for path in &args.inputs {
            if path.extension().is_some_and(|extension| extension == "npy") && path.is_file() {
                let message =
                    "--input: expected a folder or a .npz archive, found the single array";
                let hint = "(give it as --in NAME=FILE.npy)";
                return Err(Failure::usage(format!("{message} `{}` {hint}", path.display())));
            }
            catalog.add(path).map_err(|error| Failure::file("--input", path.display(), error))?;
        }
        let mut spelled = Vec::new();
        for array in &args.arrays {
            let parts = array.split_once('=');
            let Some((name, path)) =
                parts.filter(|(name, path)| !name.is_empty() && !path.is_empty())
            else {
                let message = format!("--in: expected NAME=FILE.npy, found `{array}`");
                return Err(Failure::usage(message));
            };
            catalog.add_file(name, Path::new(path));
            spelled.push(name.into());
        }
        let wanted = args.dtype.map_or(Wanted::Any, Wanted::Flag);
        Ok(Self { catalog, spelled, wanted, spellings: BTreeMap::new(), talk: *talk })
    }

    /// Whether there is such an array.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.catalog.contains(name)
    }

    /// An array of the call's element type that must be there. The first one read decides on the type, unless a flag has.
    pub(crate) fn floats(&mut self, name: &'static str, known: &[&str]) -> Result<HostTensor> {
        self.optional_floats(name)?.ok_or_else(|| self.missing(name, known))
    }

    /// An array of the call's element type that may be there.
    pub(crate) fn optional_floats(&mut self, name: &'static str) -> Result<Option<HostTensor>> {
        let tensor = self.read(name, self.wanted)?;
        if let (Some(tensor), Wanted::Any) = (&tensor, self.wanted) {
            self.wanted = Wanted::Like(tensor.dtype(), name);
        }
        Ok(tensor)
    }

    /// An array that is float32 in every call, and that must be there.
    pub(crate) fn singles(&mut self, name: &'static str, known: &[&str]) -> Result<HostTensor> {
        self.optional_singles(name)?.ok_or_else(|| self.missing(name, known))
    }

    /// An array that is float32 in every call, and that may be there.
    pub(crate) fn optional_singles(&mut self, name: &'static str) -> Result<Option<HostTensor>> {
        self.read(name, Wanted::Always(Dtype::F32))
    }

    /// An array of any type that a kernel may take: floats as they are, or integers as 32-bit words.
    #[cfg(feature = "slang")]
    pub(crate) fn any(&self, name: &str) -> Result<Option<(HostTensor, Spelling)>> {
        let Some(entry) = self.catalog.get(name) else { return Ok(None) };
        let _step = self.reading(name);
        match entry.numbers(self.wanted).map_err(|error| fault(name, entry, error))? {
            Numbers::Floats(tensor, spelling) => Ok(Some((tensor, spelling))),
            Numbers::Integers(shape, values) => {
                let words = narrowed(name, &values)?;
                Ok(Some((HostTensor::from_words(words).reshape(&shape)?, Spelling::LITTLE)))
            }
        }
    }

    /// The names that were spelled out with `--in`.
    #[cfg(feature = "slang")]
    pub(crate) fn spelled(&self) -> &[String] {
        &self.spelled
    }

    fn read(&mut self, name: &'static str, wanted: Wanted) -> Result<Option<HostTensor>> {
        let Some(entry) = self.catalog.get(name) else { return Ok(None) };
        let _step = self.reading(name);
        let (tensor, spelling) = entry.floats(wanted).map_err(|error| fault(name, entry, error))?;
        self.spellings.insert(name, spelling);
        Ok(Some(tensor))
    }

    /// An index array of `axes` axes that must be there: its shape and elements.
    pub(crate) fn indices(
        &self,
        name: &'static str,
        axes: &'static str,
        known: &[&str],
    ) -> Result<(Vec<usize>, Vec<i128>)> {
        let Some(entry) = self.catalog.get(name) else { return Err(self.missing(name, known)) };
        let _step = self.reading(name);
        let (shape, values) = entry.integers().map_err(|error| fault(name, entry, error))?;
        if shape.len() != axes.split(',').count() {
            let message = format!("array `{name}`: expected {axes}, found shape {shape:?}");
            return Err(Failure::input("shape", message));
        }
        Ok((shape, values))
    }

    fn reading(&self, name: &str) -> Step {
        self.talk.step(&format!("reading {name}"))
    }

    /// The value of the 0-d array of that name, when there is one.
    pub(crate) fn parameter(&self, name: &'static str) -> Result<Option<f64>> {
        let Some(entry) = self.catalog.get(name) else { return Ok(None) };
        entry.scalar().map(Some).map_err(|error| fault(name, entry, error))
    }

    /// A parameter: the flag, else the 0-d array rounded to f32, else the default.
    pub(crate) fn float(&self, name: &'static str, flag: Option<f32>) -> Result<Option<f32>> {
        match flag {
            Some(flag) => Ok(Some(flag)),
            None => Ok(self.parameter(name)?.map(|value| value as f32)),
        }
    }

    /// A size: the flag, else the 0-d array; one of them must be there.
    pub(crate) fn size(
        &self,
        name: &'static str,
        flag_name: &str,
        flag: Option<usize>,
    ) -> Result<usize> {
        if let Some(flag) = flag {
            return Ok(flag);
        }
        let Some(value) = self.parameter(name)? else {
            let message = format!("`{name}` is missing (give {flag_name} or a 0-d array)");
            return Err(Failure::input("parameter", message));
        };
        if value >= 0.0 && value.fract() == 0.0 && value <= f64::from(1 << 24) {
            return Ok(value as usize);
        }
        let message =
            format!("array `{name}`: expected a whole number of at most 16777216, found {value}");
        Err(Failure::input("parameter", message))
    }

    /// A yes-or-no parameter: the flag, else the 0-d array, else nothing.
    pub(crate) fn boolean(&self, name: &'static str, flag: Option<bool>) -> Result<Option<bool>> {
        if flag.is_some() {
            return Ok(flag);
        }
        match self.parameter(name)? {
            None => Ok(None),
            Some(0.0) => Ok(Some(false)),
            Some(1.0) => Ok(Some(true)),
            Some(value) => {
                let message = format!("array `{name}`: expected 0 or 1, found {value}");
                Err(Failure::input("parameter", message))
            }
        }
    }

    /// How an array that was read is spelled; plainly for others.
    pub(crate) fn spelling(&self, name: &str) -> Spelling {
        self.spellings.get(name).copied().unwrap_or(Spelling::LITTLE)
    }

    /// What the command does not know, in words, and whether it was spelled out with `--in`.
    pub(crate) fn ignored(&self, known: &[&str]) -> Vec<(String, bool)> {
        let absent = || known.iter().copied().filter(|name| !self.has(name));
        self.catalog
            .iter()
            .filter(|(name, _)| !known.contains(name))
            .map(|(name, entry)| {
                let hint = alike::meant(name, absent());
                let hint = hint.map(|meant| format!("; did you mean `{meant}`?"));
                let hint = hint.unwrap_or_default();
                let words =
                    format!("array `{name}` ({entry}) is not known here and is ignored{hint}");
                (words, self.spelled.iter().any(|spelled| spelled == name))
            })
            .collect()
    }

    /// The failure for an array that is not there, with what its name may have been mistyped as.
    pub(crate) fn missing(&self, name: &str, known: &[&str]) -> Failure {
        let unknown = self.catalog.iter().map(|(found, _)| found);
        let unknown = unknown.filter(|found| !known.contains(found));
        let hint = match alike::meant(name, unknown) {
            Some(alike) => format!("; did you mean it by `{alike}`, which is not known here?"),
            None if self.catalog.iter().next().is_none() => {
                ": no array was given (give some with --input or --in)".into()
            }
            None if self.has("arr_0") => {
                format!(
                    "; the inputs hold {} (name them: `numpy.savez(path, {name}=…)`)",
                    self.names()
                )
            }
            None => format!("; the inputs hold {}", self.names()),
        };
        Failure::input("missing-array", format!("array `{name}` is missing{hint}"))
    }

    /// The failure for `--accumulate` where none of these arrays is there.
    pub(crate) fn nothing_to_add_to(&self, names: &[&str]) -> Failure {
        let names = names.join(", ");
        let message = format!(
            "--accumulate: expected one of {names} to add to; the inputs hold {}",
            self.names()
        );
        Failure::input("missing-array", message)
    }

    /// The names of the arrays that were found, or of the first ones of very many.
    fn names(&self) -> String {
        const MOST: usize = 16;
        let count = self.catalog.iter().count();
        let names = self.catalog.iter().take(MOST).map(|(name, _)| excerpt(name));
        let list = names.collect::<Vec<_>>().join(", ");
        if count > MOST { format!("{list} and {} more", count - MOST) } else { list }
    }
}

/// The bits of integers, each of which has to fit 32 bits with or without a sign.
#[cfg(feature = "slang")]
fn narrowed(name: &str, values: &[i128]) -> Result<Vec<u32>> {
    let word = |(index, &value): (usize, &i128)| {
        let signed = i32::try_from(value).map(i32::cast_unsigned);
        signed.or_else(|_| u32::try_from(value)).map_err(|_| {
            let message = format!("array `{name}`: element {index} is {value}: expected 32 bits");
            Failure::input("index", message)
        })
    };
    values.iter().enumerate().map(word).collect()
}

fn fault(name: &str, entry: &Entry, error: FileError) -> Failure {
    Failure::file(&format!("array `{name}`"), entry, error)
}
