//! How a row's tokens are divided among subgroups.

use super::super::{Geometry, Options, Plan};

/// Subgroups that fill a large GPU; a call of fewer (row, head) pairs divides long histories to come near.
const SUBGROUPS: usize = 4096;

/// A chunk is a whole number of these: less would not repay its merge.
const TOKENS: usize = 256;

/// Chunks of a row's tokens, the same for all devices, so that they round alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// Chunks of the longest row; 0 where no row sees anything.
    pub(super) chunks: usize,
    /// Tokens a chunk.
    pub(super) tokens: usize,
}

impl Split {
    /// For a call of these sizes.
    pub(crate) fn of(geometry: &Geometry, plan: &Plan, options: &Options) -> Self {
        let longest = plan.longest_visible(options.causal) as usize;
        Self::new(geometry.queries.saturating_mul(geometry.heads), longest)
    }

    /// For so many (row, head) pairs, of which none sees more than `longest` tokens.
    pub(super) fn new(pairs: usize, longest: usize) -> Self {
        let most = (SUBGROUPS / pairs.max(1)).max(1);
        let tokens = longest.div_ceil(most).next_multiple_of(TOKENS).max(TOKENS);
        Self { chunks: longest.div_ceil(tokens), tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pairs: usize, longest: usize) -> (usize, usize) {
        let Split { chunks, tokens } = Split::new(pairs, longest);
        (chunks, tokens)
    }

    #[test]
    fn short_histories_and_many_rows_stay_whole() {
        assert_eq!(split(1, 0), (0, 256));
        assert_eq!(split(0, 5), (1, 256));
        assert_eq!(split(1, 256), (1, 256));
        assert_eq!(split(1, 257), (2, 256));
        assert_eq!(split(4096, 100_000), (1, 100_096));
        assert_eq!(split(2049, 100_000), (1, 100_096));
        assert_eq!(split(2048, 100_000), (2, 50_176));
        assert_eq!(split(1, 1 << 20), (4096, 256));
        assert_eq!(split(1, 1 << 21), (4096, 512));
    }

    #[test]
    fn chunks_cover_the_tokens_and_are_bounded() {
        for pairs in [1, 3, 32, 1000, 4095, 5000] {
            for longest in [1, 255, 256, 257, 1000, 4097, 1_000_001, u32::MAX as usize] {
                let (chunks, tokens) = split(pairs, longest);
                assert!(chunks * tokens >= longest && (chunks - 1) * tokens < longest);
                assert!(chunks == 1 || chunks * pairs <= SUBGROUPS, "{pairs}, {longest}");
            }
        }
    }
}
