//! Finds spelling suggestions ("did you mean").
//!
//! This file must not depend on the meaning of the words.

/// Returns the known word that is most similar to `word`, if one is similar enough.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    similar(word, known).first().copied()
}

/// Returns the known words that are similar to `word`, the most similar one first.
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    // Up to a third of the letters may differ, but at least one and at most three.
    let max_distance = (word.chars().count() / 3).clamp(1, 3);
    // A prefix of a known word counts as one difference.
    let begins = |known: &str| word.len() > 2 && known.to_lowercase().starts_with(&word);
    let distance_to = |known: &str| {
        if begins(known) {
            1
        } else {
            distance(&word, &known.to_lowercase())
        }
    };
    let candidates = known.into_iter().map(|known| (distance_to(known), known));
    let mut near: Vec<_> = candidates
        .filter(|(distance, _)| *distance <= max_distance)
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().map(|(_, known)| known).collect()
}

/// Returns `; did you mean "WORD"?`, or an empty text without a suggestion.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |suggestion| {
        format!("; did you mean {suggestion:?}?")
    })
}

/// Returns the edit distance, which counts insertions, deletions, substitutions and swaps of
/// adjacent letters.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, against) in other.iter().enumerate() {
            let at =
                |line: &[usize], column: usize| line.get(column).copied().unwrap_or(usize::MAX / 2);
            let mut min_distance = at(&last, column) + usize::from(letter != against);
            min_distance = min_distance
                .min(at(&last, column + 1) + 1)
                .min(at(&line, column) + 1);
            let is_swapped = row > 0
                && column > 0
                && one.get(row - 1) == Some(against)
                && other.get(column - 1) == Some(letter);
            if is_swapped {
                min_distance = min_distance.min(at(&before_last, column - 1) + 1);
            }
            line.push(min_distance);
        }
        before_last = std::mem::replace(&mut last, line);
    }
    last.last().copied().unwrap_or(one.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let known = ["bearer", "x-api-key", "api-key", "none"];
        for (word, suggestion) in [
            ("bearr", Some("bearer")),
            ("Bearer", Some("bearer")),
            ("baerer", Some("bearer")),
            ("api_key", Some("api-key")),
            ("x-api-keys", Some("x-api-key")),
            ("bea", Some("bearer")),
            ("basic", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), suggestion, "{word}");
        }
        assert_eq!(hint("nun", known), "");
        assert_eq!(hint("nonne", known), "; did you mean \"none\"?");
        assert_eq!(
            (
                distance("kitten", "sitting"),
                distance("", "ab"),
                distance("ab", "ba")
            ),
            (3, 2, 1)
        );
    }
}
