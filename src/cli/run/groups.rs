//! Sizes written as `rows*heads/64`: of the grid, and of the axes of outputs.

/// The sizes of a comma list; `value` knows the names. The message of a failure names neither flag nor list.
pub(super) fn sizes(text: &str, value: &dyn Fn(&str) -> Option<u64>) -> Result<Vec<usize>, String> {
    text.split(',').map(|part| size(part.trim(), value)).collect()
}

/// One size: factors, multiplied and divided from left to right; divisions round up.
fn size(text: &str, value: &dyn Fn(&str) -> Option<u64>) -> Result<usize, String> {
    let mut total: u64 = 1;
    let mut rest = text;
    let mut divide = false;
    loop {
        let end = rest.find(['*', '/']).unwrap_or(rest.len());
        let factor = factor(rest[..end].trim(), value)?;
        total = match divide {
            true if factor == 0 => return Err(format!("`{text}` divides by 0")),
            true => total.div_ceil(factor),
            false => total.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"))?,
        };
        let Some(sign) = rest[end..].chars().next() else { break };
        divide = sign == '/';
        rest = &rest[end + 1..];
    }
    usize::try_from(total).map_err(|_| format!("`{text}` is too large"))
}

fn factor(text: &str, value: &dyn Fn(&str) -> Option<u64>) -> Result<u64, String> {
    if text.is_empty() {
        return Err("expected a whole number or the name of a value, found nothing".into());
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.parse().map_err(|_| format!("expected a whole number, found `{text}`"));
    }
    value(text).ok_or_else(|| format!("expected a whole number or the name of one, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Option<u64> {
        [("rows", 65), ("heads", 3), ("none", 0)].iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    fn read(text: &str) -> Result<Vec<usize>, String> {
        sizes(text, &known)
    }

    #[test]
    fn divisions_round_up_from_left_to_right() {
        assert_eq!(read("7"), Ok(vec![7]));
        assert_eq!(read("rows, heads"), Ok(vec![65, 3]));
        assert_eq!(read("rows/64"), Ok(vec![2]));
        assert_eq!(read("rows / 64 * heads"), Ok(vec![6]));
        assert_eq!(read("rows*heads/64"), Ok(vec![4]));
        assert_eq!(read("none/64"), Ok(vec![0]));
    }

    #[test]
    fn what_is_no_size_is_told() {
        for (text, part) in [
            ("", "nothing"),
            ("rows/", "nothing"),
            ("3,", "nothing"),
            ("cols", "`cols`"),
            ("-1", "`-1`"),
            ("2.5", "`2.5`"),
            ("rows/none", "divides by 0"),
            ("18446744073709551615*2", "too large"),
            ("18446744073709551616", "`18446744073709551616`"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
