//! Assigns chart colours to models and keys. A colour depends on the name instead of the rank,
//! because ranks change with the spending.
//!
//! This file must not depend on a page.

/// Number of colours for names. The next number is the colour of all others together.
const COLOURS: usize = 11;

/// Colour number of the sum of all other models or keys.
pub const OTHERS_COLOUR: usize = COLOURS + 1;

/// Returns a colour number, starting at 1, for each of `names`. A name in `order`, such as the list
/// of the catalog, has the colour of its position; any other name has a colour from its hash. If
/// two names of a chart collide, the alphabetically first keeps the colour and the other gets the
/// next free one.
pub fn assign_colours(names: &[&str], order: &[&str]) -> Vec<usize> {
    let mut sorted: Vec<_> = (0..names.len()).collect();
    // Names of the catalog come first, because their positions differ and so seldom collide.
    sorted.sort_by_key(|index| {
        let name = names.get(*index).copied().unwrap_or_default();
        (!order.contains(&name), name)
    });
    let mut colours = vec![OTHERS_COLOUR; names.len()];
    let mut taken = [false; COLOURS];
    for index in sorted {
        let name = names.get(index).copied().unwrap_or_default();
        let position = order.iter().position(|known| *known == name);
        let first = position.unwrap_or_else(|| hash(name)) % COLOURS;
        let free = (0..COLOURS)
            .map(|step| (first + step) % COLOURS)
            .find(|slot| !taken.get(*slot).copied().unwrap_or(true));
        let slot = free.unwrap_or(first);
        if let Some(is_taken) = taken.get_mut(slot) {
            *is_taken = true;
        }
        if let Some(colour) = colours.get_mut(index) {
            *colour = slot + 1;
        }
    }
    colours
}

/// Returns the FNV-1a hash, which is the same in every process.
fn hash(name: &str) -> usize {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const CATALOG: [&str; 3] = ["opus", "sonnet", "haiku"];

    #[test]
    fn a_colour_belongs_to_a_model_and_not_to_its_rank() {
        assert_eq!(assign_colours(&["opus", "haiku"], &CATALOG), [1, 3]);
        assert_eq!(assign_colours(&["haiku", "opus"], &CATALOG), [3, 1]);
        assert_eq!(assign_colours(&["haiku"], &CATALOG), [3]);
        let alone = assign_colours(&["a key"], &[]);
        assert_eq!(assign_colours(&["a key"], &[]), alone);
    }

    #[test]
    fn names_of_one_chart_have_different_colours() {
        let names: Vec<_> = (0..COLOURS).map(|number| format!("key_{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let colours = assign_colours(&names, &[]);
        assert_eq!(colours.iter().collect::<BTreeSet<_>>().len(), COLOURS);
        assert!(colours.iter().all(|colour| (1..=COLOURS).contains(colour)));
        // More names than colours: some share one.
        let many: Vec<_> = (0..40).map(|number| format!("m{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(
            assign_colours(&many, &many)
                .iter()
                .all(|colour| (1..=COLOURS).contains(colour))
        );
        assert_eq!(assign_colours(&[], &[]), [] as [usize; 0]);
    }
}
