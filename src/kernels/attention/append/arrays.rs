//! The arrays of an append, and its sizes.

use std::convert::Infallible;

use super::super::geometry::{axes, fail};
use super::super::{Geometry, MAX_DIM, MAX_POSITION_DIM};
use crate::error::{Error, Result};
use crate::kernels::{Layout, expect_dtype, for_dtype};
use crate::manifest::paged_append;

/// The two arrays of a paged cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cache<T> {
    /// Keys and values of their own (MHA, GQA, MQA).
    Separate {
        /// `[pages, page_size, kv_heads, key_dim]`.
        k: T,
        /// `[pages, page_size, kv_heads, value_dim]`.
        v: T,
    },
    /// MLA.
    Latent {
        /// `[pages, page_size, 1, key_dim]`.
        latent: T,
        /// `[pages, page_size, 1, position_dim]`.
        k_position: T,
    },
}

impl<T> Cache<T> {
    /// The cache made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<Cache<U>, E> {
        Ok(match self {
            Self::Separate { k, v } => Cache::Separate { k: map("k", k)?, v: map("v", v)? },
            Self::Latent { latent, k_position } => Cache::Latent {
                latent: map("latent", latent)?,
                k_position: map("k_position", k_position)?,
            },
        })
    }

    /// The cache by reference.
    pub fn as_ref(&self) -> Cache<&T> {
        match self {
            Self::Separate { k, v } => Cache::Separate { k, v },
            Self::Latent { latent, k_position } => Cache::Latent { latent, k_position },
        }
    }

    /// Its tensors with their names.
    pub fn named(&self) -> [(&'static str, &T); 2] {
        match self {
            Self::Separate { k, v } => [("k", k), ("v", v)],
            Self::Latent { latent, k_position } => [("latent", latent), ("k_position", k_position)],
        }
    }
}

/// The arrays of an append: the new rows, and the cache that they go to. For the adjoint, their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AppendInputs<T> {
    /// Keys and values of their own (MHA, GQA, MQA).
    Separate {
        /// `[queries, kv_heads, key_dim]`.
        new_k: T,
        /// `[queries, kv_heads, value_dim]`.
        new_v: T,
        /// `[pages, page_size, kv_heads, key_dim]`.
        k: T,
        /// `[pages, page_size, kv_heads, value_dim]`.
        v: T,
    },
    /// MLA.
    Latent {
        /// `[queries, 1, key_dim]`.
        new_latent: T,
        /// `[queries, 1, position_dim]`.
        new_k_position: T,
        /// `[pages, page_size, 1, key_dim]`.
        latent: T,
        /// `[pages, page_size, 1, position_dim]`.
        k_position: T,
    },
}

/// A new array and the cache's array that it goes to, both with their names.
type Part<'a, T> = [(&'static str, &'a T); 2];

impl<T> AppendInputs<T> {
    /// The group made of what `map` makes of each named tensor.
    ///
    /// # Errors
    /// The first error of `map`.
    pub fn try_map<U, E>(
        self,
        mut map: impl FnMut(&'static str, T) -> Result<U, E>,
    ) -> Result<AppendInputs<U>, E> {
        Ok(match self {
            Self::Separate { new_k, new_v, k, v } => AppendInputs::Separate {
                new_k: map("new_k", new_k)?,
                new_v: map("new_v", new_v)?,
                k: map("k", k)?,
                v: map("v", v)?,
            },
            Self::Latent { new_latent, new_k_position, latent, k_position } => {
                AppendInputs::Latent {
                    new_latent: map("new_latent", new_latent)?,
                    new_k_position: map("new_k_position", new_k_position)?,
                    latent: map("latent", latent)?,
                    k_position: map("k_position", k_position)?,
                }
            }
        })
    }

    /// The group of what `map` makes of each named tensor.
    pub fn map<U>(self, mut map: impl FnMut(&'static str, T) -> U) -> AppendInputs<U> {
        match self.try_map(|name, t| Ok::<_, Infallible>(map(name, t))) {
            Ok(mapped) => mapped,
        }
    }

    /// The group by reference.
    pub fn as_ref(&self) -> AppendInputs<&T> {
        match self {
            Self::Separate { new_k, new_v, k, v } => AppendInputs::Separate { new_k, new_v, k, v },
            Self::Latent { new_latent, new_k_position, latent, k_position } => {
                AppendInputs::Latent { new_latent, new_k_position, latent, k_position }
            }
        }
    }

    /// The cache.
    pub fn cache(&self) -> Cache<&T> {
        match self {
            Self::Separate { k, v, .. } => Cache::Separate { k, v },
            Self::Latent { latent, k_position, .. } => Cache::Latent { latent, k_position },
        }
    }

    /// The new rows, as what they are in a cache.
    pub fn new_rows(&self) -> Cache<&T> {
        match self {
            Self::Separate { new_k, new_v, .. } => Cache::Separate { k: new_k, v: new_v },
            Self::Latent { new_latent, new_k_position, .. } => {
                Cache::Latent { latent: new_latent, k_position: new_k_position }
            }
        }
    }

    /// Each new array with where it goes.
    pub(crate) fn parts(&self) -> [Part<'_, T>; 2] {
        match self {
            Self::Separate { new_k, new_v, k, v } => {
                [[("new_k", new_k), ("k", k)], [("new_v", new_v), ("v", v)]]
            }
            Self::Latent { new_latent, new_k_position, latent, k_position } => [
                [("new_latent", new_latent), ("latent", latent)],
                [("new_k_position", new_k_position), ("k_position", k_position)],
            ],
        }
    }
}

impl Geometry {
    /// Infers the sizes of an append from the shapes of its arrays, with as many query heads as key/value heads, and
    /// checks that all agree.
    ///
    /// # Errors
    /// As [`Geometry::of_backward`].
    pub fn of_append(shapes: &AppendInputs<&[usize]>) -> Result<Self> {
        let [[(_, new), (key, cache)], [_, (other, last)]] = shapes.parts();
        let words = "[pages, page_size, kv_heads, dim]";
        let [pages, page_size, kv_heads, key_dim] = axes(key, cache, words)?;
        let [_, _, _, other_dim] = axes(other, last, words)?;
        let new_words = "[queries, kv_heads, dim]";
        let [queries, _, _] = axes(shapes.parts()[0][0].0, new, new_words)?;
        let mla = matches!(shapes, AppendInputs::Latent { .. });
        let (value_dim, position_dim) = if mla { (key_dim, other_dim) } else { (other_dim, 0) };
        let limit = if mla { MAX_POSITION_DIM } else { MAX_DIM };
        for (name, shape, dim, limit) in
            [(key, cache, key_dim, MAX_DIM), (other, last, other_dim, limit)]
        {
            if page_size == 0 {
                return fail(name, "a page_size ≥ 1".into(), shape);
            }
            if !(1..=limit).contains(&dim) {
                return fail(name, format!("a dim in 1..={limit}"), shape);
            }
            if mla && kv_heads != 1 {
                return fail(name, "one key/value head, [pages, page_size, 1, dim]".into(), shape);
            }
        }
        for [(new_name, new), (name, cache)] in shapes.parts() {
            let dim = if name == key { key_dim } else { other_dim };
            let expect = |name, found: &[usize], expected: &[usize]| {
                if found == expected { Ok(()) } else { fail(name, format!("{expected:?}"), found) }
            };
            expect(name, cache, &[pages, page_size, kv_heads, dim])?;
            expect(new_name, new, &[queries, kv_heads, dim])?;
        }
        let geometry = Self {
            queries,
            heads: kv_heads,
            kv_heads,
            pages,
            page_size,
            key_dim,
            value_dim,
            position_dim,
            statistics_columns: 0,
        };
        geometry.check_index_range()?;
        Ok(geometry)
    }
}

/// The sizes of arrays that all have one element type, which the kernels take; the cache without gaps.
pub(super) fn check(inputs: &AppendInputs<Layout<'_>>) -> Result<Geometry> {
    let [[(name, layout), _], _] = inputs.parts();
    let dtype = layout.dtype();
    for_dtype(&paged_append::F32, name, dtype)?;
    inputs.try_map(|name, layout| expect_dtype(name, layout.dtype(), dtype))?;
    inputs.cache().try_map(|name, layout| layout.expect_dense(name))?;
    Geometry::of_append(&inputs.map(|_, layout| layout.shape()))
}

/// The same of gradients, which errors call by their own names.
pub(super) fn check_gradients(gradients: &AppendInputs<Layout<'_>>) -> Result<Geometry> {
    check(gradients).map_err(|error| match error {
        Error::Shape { array, expected, found } => {
            Error::Shape { array: gradient_name(array), expected, found }
        }
        Error::Dtype { array, expected, found } => {
            Error::Dtype { array: format!("{array}_gradient"), expected, found }
        }
        Error::Layout { array, expected, found } => {
            Error::Layout { array: gradient_name(array), expected, found }
        }
        other => other,
    })
}

/// What the gradient of an array is called.
pub(super) fn gradient_name(array: &'static str) -> &'static str {
    match array {
        "new_k" => "new_k_gradient",
        "new_v" => "new_v_gradient",
        "new_latent" => "new_latent_gradient",
        "new_k_position" => "new_k_position_gradient",
        "k" => "k_gradient",
        "v" => "v_gradient",
        "latent" => "latent_gradient",
        "k_position" => "k_position_gradient",
        other => other,
    }
}
