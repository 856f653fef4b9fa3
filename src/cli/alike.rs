//! Which known name a slip may stand for.

/// The name among `known` that `typed` is most likely meant to be, if one is close.
pub(crate) fn meant<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let close = known.into_iter().filter(|name| is_close(name, typed));
    close.min_by_key(|name| distance(&name.to_lowercase(), &typed.to_lowercase()))
}

/// Whether one may be a slip of the other: a third of the letters, or their case.
pub(crate) fn is_close(name: &str, found: &str) -> bool {
    let longest = name.chars().count().max(found.chars().count());
    name.eq_ignore_ascii_case(found) || 3 * distance(name, found) <= longest
}

/// Letters to insert, remove or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_close_and_single_letters_are_not() {
        assert_eq!(distance("output_grad", "output_gradient"), 4);
        assert!(is_close("output_gradient", "output_grad"));
        assert!(is_close("sequence_ids", "sequence_id"));
        assert!(is_close("k", "K"));
        assert!(!is_close("k", "v"));
        assert!(!is_close("q", "qq"));
        assert!(!is_close("positions", "statistics"));
    }

    #[test]
    fn the_closest_name_is_meant() {
        let known = ["q_position", "k_position", "positions"];
        assert_eq!(meant("position", known), Some("positions"));
        assert_eq!(meant("K_position", known), Some("k_position"));
        assert_eq!(meant("latent", known), None);
    }
}
