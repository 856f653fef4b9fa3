//! Which gradients a call computes.

use std::str::FromStr;

use crate::error::{Error, Result};

/// One gradient of the attention backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gradient {
    /// Of `q`, by the query kernel.
    Q,
    /// Of `k`, by the history kernel.
    K,
    /// Of `v`, by the history kernel.
    V,
    /// Of MLA's `q_position`, by the query kernel.
    QPosition,
    /// Of MLA's `latent`, by the history kernel.
    Latent,
    /// Of MLA's `k_position`, by the history kernel.
    KPosition,
}

impl Gradient {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 6] =
        [Self::Q, Self::K, Self::V, Self::QPosition, Self::Latent, Self::KPosition];

    /// The array that it is the gradient of.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::QPosition => "q_position",
            Self::Latent => "latent",
            Self::KPosition => "k_position",
        }
    }

    /// The name of the output array.
    pub const fn output_name(self) -> &'static str {
        match self {
            Self::Q => "q_gradient",
            Self::K => "k_gradient",
            Self::V => "v_gradient",
            Self::QPosition => "q_position_gradient",
            Self::Latent => "latent_gradient",
            Self::KPosition => "k_position_gradient",
        }
    }

    /// Whether the history kernel computes it (the query kernel otherwise).
    pub const fn is_history(self) -> bool {
        matches!(self, Self::K | Self::V | Self::Latent | Self::KPosition)
    }

    /// Whether it exists for latent history (`mla`) or for separate keys and values.
    pub const fn exists(self, mla: bool) -> bool {
        match self {
            Self::Q => true,
            Self::K | Self::V => !mla,
            Self::QPosition | Self::Latent | Self::KPosition => mla,
        }
    }
}

/// A set of gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gradients(u8);

impl Gradients {
    /// Every gradient that the mode has.
    pub const ALL: Self = Self(u8::MAX);

    /// None.
    pub const NONE: Self = Self(0);

    /// The set of the gradients given.
    pub fn only(gradients: &[Gradient]) -> Self {
        Self(gradients.iter().fold(0, |bits, &g| bits | bit(g)))
    }

    /// Whether the set holds `gradient`.
    pub const fn contains(self, gradient: Gradient) -> bool {
        self.0 & bit(gradient) != 0
    }

    /// Whether each member is one of `others`, too.
    pub const fn is_within(self, others: Self) -> bool {
        self.0 & !others.0 == 0
    }

    /// Whether the set holds one of the history kernel's gradients.
    pub fn any_history(self) -> bool {
        Gradient::ALL.into_iter().any(|g| g.is_history() && self.contains(g))
    }

    /// Whether the set holds one of the query kernel's gradients.
    pub fn any_query(self) -> bool {
        Gradient::ALL.into_iter().any(|g| !g.is_history() && self.contains(g))
    }

    /// The members, in the order of [`Gradient::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Gradient> {
        Gradient::ALL.into_iter().filter(move |&g| self.contains(g))
    }

    /// [`Gradients::ALL`] narrowed to what `exists` allows; any other set as it is, once checked.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the set is empty or names a gradient that does not exist here.
    pub fn resolve(self, exists: impl Fn(Gradient) -> bool) -> Result<Self> {
        let available = Gradient::ALL.into_iter().filter(|&g| exists(g)).collect::<Vec<_>>();
        let expected = || {
            let names = available.iter().map(|g| g.name()).collect::<Vec<_>>();
            format!("`all` or a list of {}", names.join(", "))
        };
        if self == Self::ALL {
            return Ok(Self::only(&available));
        }
        let found = match self.iter().find(|g| !available.contains(g)) {
            Some(alien) => alien.name(),
            None if self.0 == 0 => "an empty list",
            None => return Ok(self),
        };
        Err(Error::Parameter { name: "gradients", expected: expected(), found: found.into() })
    }
}

const fn bit(gradient: Gradient) -> u8 {
    1 << gradient as u8
}

impl FromStr for Gradients {
    type Err = Error;

    /// `all`, or a comma-separated list of the names of [`Gradient::name`].
    fn from_str(list: &str) -> Result<Self> {
        if list.trim() == "all" {
            return Ok(Self::ALL);
        }
        let mut set = Self(0);
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(gradient) = Gradient::ALL.into_iter().find(|g| g.name() == name) else {
                return Err(Error::Parameter {
                    name: "gradients",
                    expected: format!(
                        "`all` or a list of {}",
                        Gradient::ALL.map(Gradient::name).join(", ")
                    ),
                    found: name.into(),
                });
            };
            set.0 |= bit(gradient);
        }
        Ok(set)
    }
}
