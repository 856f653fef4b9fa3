//! How a tensor that is larger than a binding is divided.

/// Parts are whole numbers of so many elements where rows allow it: then what begins at a part of one tensor is aligned
/// in all others, as bindings and words of halves must be.
const ELEMENTS: usize = 128;

/// Elements of each part but the last, which may have fewer, of an array that is larger than `most` elements: as many as
/// `most` allows, and a whole number of rows, whichever axes are taken for a row; of 128 rows where that many fit.
pub(crate) fn elements(shape: &[usize], most: usize) -> usize {
    let mut step = ELEMENTS;
    let mut row = 1usize;
    for &length in shape.iter().skip(1).rev() {
        let inner = row;
        row = row.saturating_mul(length);
        let fits = |n: &usize| (1..=most).contains(n);
        let rows = Some(row.saturating_mul(ELEMENTS)).filter(fits);
        let aligned = || Some(common_multiple(step, row)).filter(fits);
        // Of large rows as they are, but for whole words; not where smaller ones are aligned.
        let large = inner == 1 || !step.is_multiple_of(inner);
        let unaligned = || Some(common_multiple(2, row)).filter(|n| large && fits(n));
        step = rows.or_else(aligned).or_else(unaligned).unwrap_or(step);
    }
    (most / step * step).max(step)
}

fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_rows_of_all_kinds() {
        // 128 pages.
        assert_eq!(elements(&[1000, 4, 2, 8], 10_000), 8192);
        // Fewer, but 128 of their slots and more.
        assert_eq!(elements(&[1000, 4, 2, 8], 5000), 4096);
        assert_eq!(elements(&[1000, 3, 1, 8], 2500), 2048);
        assert_eq!(elements(&[1000, 3, 1, 8], 3500), 3072);
        // Whole sequences only where they fit.
        assert_eq!(elements(&[7, 1000, 6], 10_000), 9984);
        assert_eq!(elements(&[7, 1000, 6], 200_000), 192_000);
        // Rows that do not fit 128 times.
        assert_eq!(elements(&[9, 100], 10_000), 9600);
        assert_eq!(elements(&[9, 100], 3000), 3000);
        assert_eq!(elements(&[9, 101], 3000), 2828);
        assert_eq!(elements(&[9, 5, 303], 3000), 4 * 606);
        assert_eq!(elements(&[1 << 40], 1000), 896);
        assert_eq!(elements(&[1 << 40], 1), 128);
        assert_eq!(elements(&[2, usize::MAX, usize::MAX], 1000), 896);
    }
}
