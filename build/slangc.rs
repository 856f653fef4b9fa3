//! Finds the Slang compiler and runs it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The oldest version whose `-fp-mode precise` pins the order of sums.
pub(crate) const MINIMUM: Version = Version([2026, 13, 0]);

/// Year, release, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u32; 3]);

impl Version {
    /// Reads `2026.14.1`, `v2026.13`, or such a version with a suffix after `-`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let numbers = text.split('-').next()?;
        let mut version = [0; 3];
        let mut count = 0;
        for part in numbers.split('.') {
            *version.get_mut(count)? = part.parse().ok()?;
            count += 1;
        }
        (count >= 2).then_some(Self(version))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [year, release, patch] = self.0;
        write!(f, "{year}.{release}")?;
        if patch > 0 { write!(f, ".{patch}") } else { Ok(()) }
    }
}

/// The ways to a compiler, in this order.
pub(crate) const ALL: &[&str] = &["SLANGC", "SLANG_DIR", "VULKAN_SDK", "PATH"];
/// The ways that name one for this purpose.
pub(crate) const NAMED: &[&str] = &["SLANGC", "SLANG_DIR"];

/// Where a compiler was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) program: PathBuf,
    /// The environment variable that led there.
    pub(crate) variable: &'static str,
}

impl Found {
    /// Whether the variable says "this compiler", so that building without it would be wrong.
    pub(crate) fn is_named(&self) -> bool {
        NAMED.contains(&self.variable)
    }

    fn remedy(&self) -> String {
        remedy(self.variable)
    }
}

fn remedy(variable: &str) -> String {
    let without = match variable {
        "PATH" => "take it off PATH".to_owned(),
        variable => format!("unset {variable}"),
    };
    format!(
        "{without}, or run tools/setup, which finds or installs a fitting one, and set SLANGC to it"
    )
}

/// The first compiler that the variables of `ways` lead to; `asked` is told each one looked at.
pub(crate) fn find(
    ways: &[&'static str],
    value: impl Fn(&str) -> Option<OsString>,
    mut asked: impl FnMut(&'static str),
) -> Result<Option<Found>> {
    for &variable in ways {
        asked(variable);
        let Some(value) = value(variable).filter(|v| !v.is_empty()) else { continue };
        let candidates = candidates(variable, &value);
        if let Some(program) = candidates.iter().find(|p| p.is_file()) {
            // It will run in another folder.
            let program = std::path::absolute(program)?;
            return Ok(Some(Found { program, variable }));
        }
        if NAMED.contains(&variable) {
            let looked: Vec<_> = candidates.iter().map(|p| p.display().to_string()).collect();
            bail!(
                "{variable}={}: there is no file {}: {}",
                value.display(),
                looked.join(" or "),
                remedy(variable)
            );
        }
    }
    Ok(None)
}

fn candidates(variable: &str, value: &OsStr) -> Vec<PathBuf> {
    let program = format!("slangc{}", std::env::consts::EXE_SUFFIX);
    match variable {
        "SLANGC" => vec![value.into()],
        "PATH" => std::env::split_paths(value).map(|folder| folder.join(&program)).collect(),
        _ => ["bin", "Bin", ""].map(|bin| Path::new(value).join(bin).join(&program)).into(),
    }
}

/// A compiler new enough.
pub(crate) struct Slangc {
    program: PathBuf,
    pub(crate) version: Version,
}

impl Slangc {
    /// Asks the compiler found for its version.
    pub(crate) fn new(found: &Found) -> Result<Self> {
        let place = format!("slangc found at {} (by {})", found.program.display(), found.variable);
        let output = Command::new(&found.program)
            .arg("-v")
            .output()
            .with_context(|| format!("{place} cannot be run; {}", found.remedy()))?;
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let Some(version) = err.lines().chain(out.lines()).find_map(Version::parse) else {
            bail!(
                "{place} does not tell its version: `{}`; {MINIMUM} or newer is needed: {}",
                err.trim(),
                found.remedy()
            );
        };
        if version < MINIMUM {
            bail!("{place} is version {version}, {MINIMUM} or newer is needed: {}", found.remedy());
        }
        Ok(Self { program: found.program.clone(), version })
    }

    /// Runs it in `folder`; anything it prints is a failure.
    pub(crate) fn run(&self, folder: &Path, arguments: &[&str]) -> Result<()> {
        let output = Command::new(&self.program).current_dir(folder).args(arguments).output()?;
        let said = [output.stderr, output.stdout].map(|s| String::from_utf8_lossy(&s).into_owned());
        let said = said.join("\n");
        if output.status.success() && said.trim().is_empty() {
            return Ok(());
        }
        bail!("{}\n({}: slangc {})", said.trim(), output.status, arguments.join(" "))
    }
}
