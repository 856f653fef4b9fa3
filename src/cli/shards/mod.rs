//! `--shard` and `merge`: parts of the work, their manifests, and how they are joined.

mod identity;
mod manifest;
mod merge;
mod part;

pub(crate) use identity::Identity;
pub(crate) use manifest::Device;
pub(crate) use merge::{merge, talk_of_kinds};
pub(crate) use part::write;

/// The manifest of a part, beside its arrays.
pub(crate) const MANIFEST: &str = "shard.json";
