//! What the cases are: sizes, schedules, and what is given and asked for.

use crate::check::Command;

/// What a case is about, and its sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) call: Call,
    /// Tokens and query rows of each sequence.
    pub(super) sequences: &'static [(usize, usize)],
    /// Pages at the start that all sequences share.
    pub(super) shared_pages: usize,
    pub(super) page_size: usize,
    /// Query heads, key/value heads.
    pub(super) heads: [usize; 2],
    /// Of keys, values and positions; a position width makes it MLA.
    pub(super) dims: [usize; 3],
    pub(super) causal: bool,
    /// Rows at random positions, some beyond the length, instead of at the end.
    pub(super) unsorted: bool,
    /// Factor of q.
    pub(super) amplitude: f32,
    /// q and k are integers, so that f32 has the scores to the bit however large they are; the factor is that of both.
    pub(super) exact_scores: bool,
    /// What a forward left.
    pub(super) given: Given,
    /// The gradients are added to what their tensors hold.
    pub(super) accumulate: bool,
    /// The options that must not change a bit.
    pub(super) ways: Ways,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Forward,
    Backward,
    Append,
    AppendAdjoint,
}

/// What a forward left for the backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Nothing,
    /// Maximum and denominator.
    Statistics,
    /// Maximum, denominator and delta.
    Complete,
    /// The same; the denominators of some rows are 0, so that nothing else of these counts.
    CompleteForSome,
    /// Maximum and denominator, and the output.
    Output,
}

/// Which options are tried beside the usual ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ways {
    /// None.
    Usual,
    /// Pruned or not, cached or not, compacted or not, and other blocks of rows.
    Settings,
    /// Each gradient without the others.
    Alone,
    /// Rows of arrays that lie apart.
    Views,
}

/// The cases of a command.
pub(super) fn cases(command: Command) -> Vec<Case> {
    let grouped = Case {
        name: "grouped heads, shared pages",
        call: Call::Backward,
        sequences: &[(27, 9), (18, 6), (33, 11), (0, 0), (21, 0)],
        shared_pages: 3,
        page_size: 4,
        heads: [6, 2],
        dims: [24, 20, 0],
        causal: true,
        unsorted: false,
        amplitude: 1.0,
        exact_scores: false,
        given: Given::Nothing,
        accumulate: false,
        ways: Ways::Usual,
    };
    let latent = Case { name: "latent history", heads: [4, 1], dims: [32, 32, 8], ..grouped };
    match command {
        Command::HistoryBackward => history(grouped, latent),
        Command::PagedAttention => forward(grouped, latent),
        Command::PagedAppend => append(grouped, latent),
        _ => backward(grouped, latent),
    }
}

fn forward(grouped: Case, latent: Case) -> Vec<Case> {
    let grouped = Case { call: Call::Forward, ..grouped };
    let latent = Case { call: Call::Forward, ..latent };
    let wide = Case { dims: [192, 160, 0], page_size: 16, shared_pages: 1, ..grouped };
    let long = Case {
        sequences: &[(1500, 1), (300, 2)],
        shared_pages: 2,
        page_size: 16,
        heads: [4, 2],
        dims: [16, 12, 0],
        ..grouped
    };
    vec![
        Case { ways: Ways::Views, ..grouped },
        Case { name: "one head each, page of 1", heads: [3, 3], page_size: 1, ..grouped },
        Case { name: "one key/value head, odd widths", heads: [9, 1], dims: [7, 9, 0], ..grouped },
        Case { name: "unsorted rows", unsorted: true, ..grouped },
        Case { name: "not causal", causal: false, ..grouped },
        Case { name: "wide rows", sequences: &[(40, 8), (19, 5)], ..wide },
        Case { name: "long history", ..long },
        Case { name: "long history, odd widths", dims: [16, 13, 0], ..long },
        // The factor of the scores is 1/4, hence exact too.
        Case {
            name: "scores of 1e4",
            dims: [16, 20, 0],
            amplitude: 60.0,
            exact_scores: true,
            ..grouped
        },
        Case { ways: Ways::Views, ..latent },
        Case { name: "latent history, odd widths", dims: [31, 31, 5], ..latent },
        Case { name: "latent history, long", heads: [4, 1], dims: [32, 32, 8], ..long },
        Case { name: "no queries", sequences: &[(9, 0)], ..grouped },
        Case { name: "no sequences", sequences: &[], shared_pages: 0, ..grouped },
    ]
}

fn append(grouped: Case, latent: Case) -> Vec<Case> {
    // Rows go to pages of their own.
    let grouped = Case { name: "grouped heads", call: Call::Append, shared_pages: 0, ..grouped };
    let odd = Case { name: "odd widths", heads: [3, 3], dims: [7, 9, 0], page_size: 3, ..grouped };
    let latent = Case { call: Call::Append, shared_pages: 0, dims: [32, 32, 7], ..latent };
    let adjoint = Call::AppendAdjoint;
    vec![
        grouped,
        odd,
        latent,
        Case { name: "no rows", sequences: &[(9, 0)], ..grouped },
        Case { name: "adjoint, grouped heads", call: adjoint, ..grouped },
        Case { name: "adjoint, odd widths", call: adjoint, ..odd },
        Case { name: "adjoint, latent history", call: adjoint, ..latent },
    ]
}

fn history(grouped: Case, latent: Case) -> Vec<Case> {
    let given = Case { given: Given::Complete, ..grouped };
    vec![
        Case { name: "statistics given", ways: Ways::Settings, ..given },
        Case { name: "statistics of some rows", given: Given::CompleteForSome, ..given },
        Case { name: "statistics without delta", given: Given::Statistics, ..given },
        Case { name: "statistics computed", unsorted: true, given: Given::Nothing, ..given },
        Case { name: "latent history, statistics given", given: Given::Complete, ..latent },
    ]
}

fn backward(grouped: Case, latent: Case) -> Vec<Case> {
    let unsorted = Case { unsorted: true, ways: Ways::Settings, ..grouped };
    vec![
        Case { ways: Ways::Alone, ..grouped },
        Case { name: "one head each, page of 1", heads: [3, 3], page_size: 1, ..grouped },
        Case { name: "one key/value head, odd widths", heads: [9, 1], dims: [7, 9, 0], ..grouped },
        Case { name: "unsorted rows", sequences: &[(30, 70), (14, 5)], ..unsorted },
        Case { name: "not causal", causal: false, ..grouped },
        Case {
            name: "wide rows",
            dims: [192, 160, 0],
            sequences: &[(40, 8), (19, 5)],
            page_size: 16,
            shared_pages: 1,
            ..grouped
        },
        Case { name: "large scores", amplitude: 12.0, ..grouped },
        Case { name: "statistics without delta", given: Given::Statistics, ..grouped },
        Case { name: "added to old gradients", accumulate: true, ways: Ways::Settings, ..grouped },
        Case { name: "output given", given: Given::Output, ..grouped },
        Case { ways: Ways::Alone, ..latent },
        Case {
            name: "latent history, unsorted rows",
            dims: latent.dims,
            heads: latent.heads,
            ..unsorted
        },
        Case { name: "latent history, odd widths", dims: [31, 31, 5], ..latent },
        Case {
            name: "latent history, odd widths, added",
            accumulate: true,
            dims: [31, 31, 5],
            ..latent
        },
        Case { name: "no queries", sequences: &[(9, 0)], ..grouped },
        Case { name: "no sequences", sequences: &[], shared_pages: 0, ..grouped },
    ]
}
