//! Sizes of calls, and what a call of such sizes must move and multiply.

use backslang::Dtype;
use backslang::kernels::attention::{self, Gradient};
use backslang::kernels::mamba3::preprocess;
use serde_json::{Value, json};

/// Which call is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Backward,
    /// The backward where the gradients of z and x lie in the packed gradient already.
    InPlace,
}

impl Pass {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::InPlace => "backward-in-place",
        }
    }
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Attention(Attention),
    Mamba3(Mamba3),
}

/// Sequences of equal length, the last tokens of which are the queries, causal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attention {
    pub(crate) sequences: usize,
    /// Tokens that all sequences share.
    pub(crate) prefix: usize,
    /// Tokens of each sequence after them.
    pub(crate) own: usize,
    /// Query rows of each sequence.
    pub(crate) queries: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// 0 but for MLA.
    pub(crate) position_dim: usize,
    pub(crate) page_size: usize,
    /// Pages that no sequence has.
    pub(crate) spare: usize,
}

/// Of the preprocess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mamba3 {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) state: usize,
    pub(crate) bc_rows: usize,
    pub(crate) heads: usize,
    pub(crate) rope: usize,
}

/// What a call must do, however it is done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counts {
    /// Bytes of the inputs, which are read once.
    pub(super) inputs: u64,
    /// Bytes of the outputs, which are written once.
    pub(super) outputs: u64,
    /// Visible (row, head, token) triples; 0 where there is no attention.
    pub(super) pairs: u64,
    /// Of each kernel with products: the beginning of its name, and the operations of these products.
    pub(super) products: Vec<(&'static str, f64)>,
    /// Operations of as few products as the result can be had with.
    pub(super) least: f64,
}

impl Counts {
    pub(super) fn bytes(&self) -> u64 {
        self.inputs + self.outputs
    }

    /// Operations of all products.
    pub(super) fn operations(&self) -> f64 {
        self.products.iter().fold(0.0, |sum, (_, operations)| sum + operations)
    }

    /// Those of the products of this kernel.
    pub(super) fn of_kernel(&self, kernel: &str) -> Option<f64> {
        self.products.iter().find(|(name, _)| kernel.starts_with(name)).map(|(_, n)| *n)
    }
}

impl Shape {
    /// With lengths so many times shorter.
    pub(super) fn shrunk(self, by: usize) -> Self {
        let shrink = |length: usize| length.div_ceil(by);
        match self {
            Self::Attention(shape) => Self::Attention(Attention {
                prefix: shrink(shape.prefix).next_multiple_of(shape.page_size),
                own: shrink(shape.own),
                queries: shrink(shape.queries),
                spare: shrink(shape.spare),
                ..shape
            }),
            Self::Mamba3(shape) => Self::Mamba3(Mamba3 { rows: shrink(shape.rows), ..shape }),
        }
    }

    pub(super) fn counts(&self, pass: Pass, dtype: Dtype) -> Counts {
        match self {
            Self::Attention(shape) => shape.counts(pass, dtype),
            Self::Mamba3(shape) => shape.counts(pass, dtype),
        }
    }

    pub(super) fn object(&self) -> Value {
        match *self {
            Self::Attention(shape) => json!({
                "sequences": shape.sequences,
                "shared_tokens": shape.prefix,
                "own_tokens": shape.own,
                "queries": shape.queries,
                "heads": shape.heads,
                "kv_heads": shape.kv_heads,
                "key_dim": shape.key_dim,
                "value_dim": shape.value_dim,
                "position_dim": shape.position_dim,
                "page_size": shape.page_size,
                "spare_pages": shape.spare,
            }),
            Self::Mamba3(shape) => json!({
                "rows": shape.rows,
                "inner_size": shape.inner,
                "state_size": shape.state,
                "bc_rows": shape.bc_rows,
                "heads": shape.heads,
                "rope_angles": shape.rope,
            }),
        }
    }
}

impl Attention {
    /// Tokens of a sequence.
    pub(super) fn length(&self) -> usize {
        self.prefix + self.own
    }

    /// Pages of the shared tokens, and of each sequence's own.
    pub(super) fn pages(&self) -> [usize; 2] {
        [self.prefix.div_ceil(self.page_size), self.own.div_ceil(self.page_size)]
    }

    pub(super) fn geometry(&self) -> attention::Geometry {
        let [shared, own] = self.pages();
        attention::Geometry {
            queries: self.sequences * self.queries,
            heads: self.heads,
            kv_heads: self.kv_heads,
            pages: shared + self.sequences * own + self.spare,
            page_size: self.page_size,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            position_dim: self.position_dim,
            statistics_columns: 3,
        }
    }

    pub(super) fn scale(&self) -> f32 {
        (1.0 / ((self.key_dim + self.position_dim) as f64).sqrt()) as f32
    }

    /// Visible (row, head, token) triples.
    fn pairs(&self) -> u64 {
        let (length, queries) = (self.length() as u64, self.queries as u64);
        let row_tokens = queries * (length - queries) + queries * (queries + 1) / 2;
        row_tokens * (self.sequences * self.heads) as u64
    }

    fn counts(&self, pass: Pass, dtype: Dtype) -> Counts {
        let geometry = self.geometry();
        let elements = |shape: Vec<usize>| shape.iter().product::<usize>();
        let arrays = Gradient::ALL.into_iter().filter(|g| g.exists(geometry.is_mla()));
        let arrays: usize = arrays.map(|g| elements(geometry.gradient_shape(g))).sum();
        // Gradients of zero are written, but nothing is read.
        let slot = self.kv_heads
            * (self.key_dim + if geometry.is_mla() { self.position_dim } else { self.value_dim });
        let read = arrays - self.spare * self.page_size * slot;
        let output = elements(geometry.output_shape());
        let bytes = |elements: usize| (elements * dtype.size()) as u64;
        let rows = (4 * geometry.queries * geometry.heads) as u64;
        let pairs = self.pairs();
        let [score, value] = [self.key_dim + self.position_dim, self.value_dim];
        let of_width = |width: usize| 2.0 * pairs as f64 * width as f64;
        if pass == Pass::Forward {
            let operations = of_width(score + value);
            return Counts {
                inputs: bytes(read),
                outputs: bytes(output) + 2 * rows,
                pairs,
                products: vec![("paged_attention", operations)],
                least: operations,
            };
        }
        // Scores, dp and the query gradient; scores, dp and both history gradients.
        let products =
            [("query_backward", 2 * score + value), ("history_backward", 2 * (score + value))];
        Counts {
            inputs: bytes(read + output) + 3 * rows,
            outputs: bytes(arrays),
            pairs,
            products: products.map(|(kernel, width)| (kernel, of_width(width))).to_vec(),
            least: of_width(3 * score + 2 * value),
        }
    }
}

impl Mamba3 {
    pub(super) fn geometry(&self) -> preprocess::Geometry {
        preprocess::Geometry {
            leading: vec![self.rows],
            rows: self.rows,
            inner_size: self.inner,
            bc_rows: self.bc_rows,
            state_size: self.state,
            heads: self.heads,
            rope_angles: self.rope,
        }
    }

    fn counts(&self, pass: Pass, dtype: Dtype) -> Counts {
        let size = dtype.size();
        let (bc, heads) = (2 * self.bc_rows * self.state, self.heads);
        let packed = self.geometry().projected_width() * size;
        // What of the outputs is in f32 whatever the packed rows are.
        let passed = (2 * self.inner + self.rope) * size;
        let in_place = if pass == Pass::InPlace { 2 * self.inner * size } else { 0 };
        let [inputs, outputs] = match pass {
            Pass::Forward => [packed, passed + bc * size + 3 * heads * 4],
            // Of the packed rows, what has a derivative of its own.
            Pass::Backward | Pass::InPlace => [
                (bc + 2 * heads) * size + passed + bc * size + 3 * heads * 4 - in_place,
                packed - in_place + heads * 4,
            ],
        };
        let bytes = |row: usize| (self.rows * row) as u64;
        Counts {
            inputs: bytes(inputs),
            outputs: bytes(outputs),
            pairs: 0,
            products: Vec::new(),
            least: 0.0,
        }
    }
}
