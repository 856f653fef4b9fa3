//! Sizes of an attention call, inferred from the shapes of its arrays.

use super::{BackwardInputs, ForwardInputs, Gradient, History};
use crate::error::{Error, Result};
use crate::kernels::index_range::{count, fits};

/// Largest `key_dim` and `value_dim`.
pub const MAX_DIM: usize = 1024;
/// Largest `position_dim`.
pub const MAX_POSITION_DIM: usize = 256;

/// The sizes of one paged-attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Packed query rows.
    pub queries: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads; 1 for MLA.
    pub kv_heads: usize,
    /// Physical pages.
    pub pages: usize,
    /// Slots a page, ≥ 1.
    pub page_size: usize,
    /// Width of a key (MLA: of a latent row), 1..=1024.
    pub key_dim: usize,
    /// Width of a value (MLA: equal to `key_dim`), 1..=1024.
    pub value_dim: usize,
    /// Width of MLA's position part, 1..=256; 0 otherwise.
    pub position_dim: usize,
    /// Columns of the given statistics: 0 (none given), 2 or 3.
    pub statistics_columns: usize,
}

impl Geometry {
    /// Infers the sizes from the shapes of the inputs and checks that all agree.
    ///
    /// # Errors
    /// [`Error::Shape`] for the first array that disagrees or has a dimension out of range;
    /// [`Error::TooLarge`] for more rows, heads, pages or slots than the kernels can index.
    pub fn of_backward(shapes: &BackwardInputs<&[usize]>) -> Result<Self> {
        let statistics_columns = match shapes.statistics {
            None => 0,
            Some(&[_, _, columns @ (2 | 3)]) => columns,
            Some(found) => return fail("statistics", "[queries, heads, 2 or 3]".into(), found),
        };
        let geometry = Self { statistics_columns, ..Self::infer(shapes.q, &shapes.history)? };
        shapes.try_map(|array, found| geometry.check_shape(array, found))?;
        geometry.check_index_range()?;
        Ok(geometry)
    }

    /// Infers the sizes from the shapes of the forward's inputs and checks that all agree.
    ///
    /// # Errors
    /// As [`Geometry::of_backward`].
    pub fn of_forward(shapes: &ForwardInputs<&[usize]>) -> Result<Self> {
        let geometry = Self::infer(shapes.q, &shapes.history)?;
        shapes.try_map(|array, found| geometry.check_shape(array, found))?;
        geometry.check_index_range()?;
        Ok(geometry)
    }

    /// Whether the history is latent (MLA).
    pub fn is_mla(&self) -> bool {
        self.position_dim > 0
    }

    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Physical slots: pages · page_size.
    pub fn slots(&self) -> usize {
        self.pages.saturating_mul(self.page_size)
    }

    /// The shape of a gradient, which is that of its array.
    pub fn gradient_shape(&self, gradient: Gradient) -> Vec<usize> {
        let rows = [self.queries, self.heads];
        let cache = [self.pages, self.page_size, self.kv_heads];
        match gradient {
            Gradient::Q => [rows.as_slice(), &[self.key_dim]].concat(),
            Gradient::QPosition => [rows.as_slice(), &[self.position_dim]].concat(),
            Gradient::K | Gradient::Latent => [cache.as_slice(), &[self.key_dim]].concat(),
            Gradient::V => [cache.as_slice(), &[self.value_dim]].concat(),
            Gradient::KPosition => [cache.as_slice(), &[self.position_dim]].concat(),
        }
    }

    /// The shape of the forward's output.
    pub fn output_shape(&self) -> Vec<usize> {
        vec![self.queries, self.heads, self.value_dim]
    }

    /// The shape of the statistics that the forward writes.
    pub fn forward_statistics_shape(&self) -> Vec<usize> {
        vec![self.queries, self.heads, 2]
    }

    /// The shape of the statistics that the query kernel writes.
    pub fn statistics_shape(&self) -> Vec<usize> {
        vec![self.queries, self.heads, 3]
    }

    /// Checks that every axis and the numbers of slots and of rows of the cache fit u32. Arrays may have any number of
    /// elements.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for the first that does not.
    pub fn check_index_range(&self) -> Result<()> {
        let Self { queries, heads, kv_heads, pages, page_size, .. } = *self;
        // The axes first: beside an axis of 0, any other may be huge.
        fits("queries", count(&[queries]))?;
        fits("heads", count(&[heads]))?;
        fits("key/value heads", count(&[kv_heads]))?;
        fits("pages", count(&[pages]))?;
        fits("slots (pages · page_size)", count(&[pages, page_size]).max(count(&[page_size])))?;
        fits("rows of the cache (slots · kv_heads)", count(&[pages, page_size, kv_heads]))
    }

    fn infer(q: &[usize], history: &History<&[usize]>) -> Result<Self> {
        let [queries, heads, key_dim] = axes("q", q, "[queries, heads, key_dim]")?;
        let (name, cache, value_dim, position_dim) = match history {
            History::Separate { k, v } => {
                let value = axes::<4>("v", v, "[pages, page_size, kv_heads, value_dim]")?;
                ("k", k, value[3], 0)
            }
            History::Latent { latent, k_position, .. } => {
                let words = "[pages, page_size, 1, position_dim]";
                let position = axes::<4>("k_position", k_position, words)?;
                ("latent", latent, key_dim, position[3])
            }
        };
        let words = "[pages, page_size, kv_heads, key_dim]";
        let [pages, page_size, kv_heads, _] = axes(name, cache, words)?;
        let statistics_columns = 0;
        let geometry = Self {
            queries,
            heads,
            kv_heads,
            pages,
            page_size,
            key_dim,
            value_dim,
            position_dim,
            statistics_columns,
        };
        geometry.check_ranges(q, name, cache, history)?;
        Ok(geometry)
    }

    fn check_ranges(
        &self,
        q: &[usize],
        name: &'static str,
        cache: &[usize],
        history: &History<&[usize]>,
    ) -> Result<()> {
        if !(1..=MAX_DIM).contains(&self.key_dim) {
            return fail("q", format!("a key_dim in 1..={MAX_DIM}"), q);
        }
        if self.page_size == 0 {
            return fail(name, "a page_size ≥ 1".into(), cache);
        }
        match history {
            History::Separate { v, .. } if !(1..=MAX_DIM).contains(&self.value_dim) => {
                return fail("v", format!("a value_dim in 1..={MAX_DIM}"), v);
            }
            History::Latent { k_position, .. }
                if !(1..=MAX_POSITION_DIM).contains(&self.position_dim) =>
            {
                let expected = format!("a position_dim in 1..={MAX_POSITION_DIM}");
                return fail("k_position", expected, k_position);
            }
            History::Latent { .. } if self.kv_heads != 1 => {
                let expected = "one key/value head, [pages, page_size, 1, key_dim]";
                return fail(name, expected.into(), cache);
            }
            _ => {}
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("heads divisible by the {} kv_heads of `{name}`", self.kv_heads);
            return fail("q", expected, q);
        }
        Ok(())
    }

    fn check_shape(&self, array: &'static str, found: &[usize]) -> Result<()> {
        let rows = |dim| vec![self.queries, self.heads, dim];
        let cache = |dim| vec![self.pages, self.page_size, self.kv_heads, dim];
        let expected = match array {
            "q" => rows(self.key_dim),
            "k" | "latent" => cache(self.key_dim),
            "v" => cache(self.value_dim),
            "k_position" => cache(self.position_dim),
            "q_position" => rows(self.position_dim),
            "statistics" => rows(self.statistics_columns),
            _ => rows(self.value_dim),
        };
        if found == expected { Ok(()) } else { fail(array, format!("{expected:?}"), found) }
    }
}

pub(super) fn fail<T>(array: &'static str, expected: String, found: &[usize]) -> Result<T> {
    Err(Error::Shape { array, expected, found: found.to_vec() })
}

/// The axes of a shape with exactly `N` of them.
pub(super) fn axes<const N: usize>(
    array: &'static str,
    shape: &[usize],
    words: &str,
) -> Result<[usize; N]> {
    shape.try_into().map_err(|_| Error::Shape {
        array,
        expected: words.into(),
        found: shape.to_vec(),
    })
}
