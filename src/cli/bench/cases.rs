//! The cases that have a name.

use super::shapes::{Attention, Mamba3, Pass, Shape};

/// A call of these sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) pass: Pass,
    pub(crate) shape: Shape,
}

/// Grouped-query attention of 32 heads on 8, each 128 wide, in pages of 16 tokens.
pub(super) const GROUPED: Attention = Attention {
    sequences: 4,
    prefix: 0,
    own: 2048,
    queries: 2048,
    heads: 32,
    kv_heads: 8,
    key_dim: 128,
    value_dim: 128,
    position_dim: 0,
    page_size: 16,
    spare: 0,
};

/// All rows of 4 × 2048 tokens are queries.
const A: Shape = Shape::Attention(GROUPED);
/// The last 2048 of 16384 tokens.
const B: Shape = Shape::Attention(Attention { sequences: 1, own: 16384, ..GROUPED });
/// The last token of 64 × 4096: decoding.
const C: Shape = Shape::Attention(Attention { sequences: 64, own: 4096, queries: 1, ..GROUPED });
/// MLA: all rows of 2 × 2048 tokens.
const D: Shape = Shape::Attention(Attention {
    sequences: 2,
    heads: 16,
    kv_heads: 1,
    key_dim: 512,
    value_dim: 512,
    position_dim: 64,
    ..GROUPED
});
/// 32 × 64 tokens after a prefix of 2048 that all share.
const E: Shape =
    Shape::Attention(Attention { sequences: 32, prefix: 2048, own: 64, queries: 64, ..GROUPED });

/// Packed rows of 4480 elements.
pub(super) const PACKED: Mamba3 =
    Mamba3 { rows: 32768, inner: 2048, state: 128, bc_rows: 1, heads: 32, rope: 32 };
const ONE: Shape = Shape::Mamba3(PACKED);
/// With more state rows.
const TWO: Shape = Shape::Mamba3(Mamba3 { bc_rows: 4, ..PACKED });
/// More and narrower rows.
const THREE: Shape = Shape::Mamba3(Mamba3 {
    rows: 262_144,
    inner: 1024,
    state: 64,
    bc_rows: 1,
    heads: 16,
    rope: 16,
});

const fn case(name: &'static str, pass: Pass, shape: Shape) -> Case {
    Case { name, pass, shape }
}

/// All of them, those of a size behind each other.
pub(crate) const CASES: [Case; 19] = [
    case("attention-a", Pass::Backward, A),
    case("attention-a-forward", Pass::Forward, A),
    case("attention-b", Pass::Backward, B),
    case("attention-b-forward", Pass::Forward, B),
    case("attention-c", Pass::Backward, C),
    case("attention-c-forward", Pass::Forward, C),
    case("attention-d", Pass::Backward, D),
    case("attention-d-forward", Pass::Forward, D),
    case("attention-e", Pass::Backward, E),
    case("attention-e-forward", Pass::Forward, E),
    case("mamba3-1", Pass::Backward, ONE),
    case("mamba3-1-in-place", Pass::InPlace, ONE),
    case("mamba3-1-forward", Pass::Forward, ONE),
    case("mamba3-2", Pass::Backward, TWO),
    case("mamba3-2-in-place", Pass::InPlace, TWO),
    case("mamba3-2-forward", Pass::Forward, TWO),
    case("mamba3-3", Pass::Backward, THREE),
    case("mamba3-3-in-place", Pass::InPlace, THREE),
    case("mamba3-3-forward", Pass::Forward, THREE),
];

/// Those that are asked for by name, each once and in their order, or all backwards; with the forwards of the same sizes if
/// these are asked for.
pub(super) fn chosen(names: &[String], forward: bool) -> Vec<Case> {
    let named = |case: &Case| match names {
        [] => case.pass != Pass::Forward,
        some => some.iter().any(|name| name == case.name),
    };
    let shapes: Vec<Shape> =
        CASES.iter().filter(|case| named(case)).map(|case| case.shape).collect();
    let also = |case: &Case| forward && case.pass == Pass::Forward && shapes.contains(&case.shape);
    CASES.into_iter().filter(|case| named(case) || also(case)).collect()
}

#[cfg(test)]
mod tests {
    use backslang::Dtype;

    use super::*;

    fn counts(name: &str, dtype: Dtype) -> super::super::shapes::Counts {
        let case = CASES.into_iter().find(|case| case.name == name).unwrap();
        case.shape.counts(case.pass, dtype)
    }

    #[test]
    fn cases_are_chosen_by_name() {
        let names = |names: &[&str], forward| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names, forward).into_iter().map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[], false).len(), 11);
        assert_eq!(names(&[], true).len(), CASES.len());
        assert_eq!(names(&["mamba3-1", "attention-c"], false), ["attention-c", "mamba3-1"]);
        assert_eq!(names(&["attention-c"], true), ["attention-c", "attention-c-forward"]);
        assert_eq!(names(&["attention-c-forward"; 2], false), ["attention-c-forward"]);
    }

    /// By hand, from the shapes.
    #[test]
    fn bytes_are_those_of_the_arrays() {
        assert_eq!(counts("mamba3-1", Dtype::F32).bytes(), 32768 * (2 * 4480 + 320 + 32) * 4);
        let saved = counts("mamba3-1", Dtype::F32).bytes()
            - counts("mamba3-1-in-place", Dtype::F32).bytes();
        assert_eq!(saved, 2 * 32768 * 4096 * 4);
        assert_eq!(counts("mamba3-1-forward", Dtype::F32).bytes(), 32768 * 2 * 4480 * 4);
        let halves = counts("mamba3-1", Dtype::Bf16).bytes();
        assert_eq!(halves, 32768 * ((2 * 4480 + 320 - 96) * 2 + (96 + 32) * 4));
        // Pages in and out; q, its gradient and that of the output; the statistics.
        let decoding = 4 * 64 * 4096 * 8 * 128 * 2 + 3 * 64 * 32 * 128 * 2 + 64 * 32 * 3 * 4;
        assert_eq!(counts("attention-c", Dtype::F16).bytes(), decoding);
    }

    #[test]
    fn products_are_those_of_the_visible_pairs() {
        let a = counts("attention-a", Dtype::F32);
        assert_eq!(a.pairs, 4 * 32 * (2048 * 2049 / 2));
        assert_eq!(a.operations(), 7.0 * 256.0 * a.pairs as f64);
        assert_eq!(a.least, 5.0 * 256.0 * a.pairs as f64);
        assert_eq!(a.of_kernel("query_backward"), Some(3.0 * 256.0 * a.pairs as f64));
        assert_eq!(a.of_kernel("clear_pages"), None);
        let e = counts("attention-e", Dtype::F32);
        assert_eq!(e.pairs, 32 * 32 * (64 * 2048 + 64 * 65 / 2));
        let d = counts("attention-d", Dtype::Bf16);
        assert_eq!(d.operations(), 2.0 * d.pairs as f64 * (4.0 * 576.0 + 3.0 * 512.0));
    }
}
