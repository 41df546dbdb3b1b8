//! Lists of candidates.

/// Those that are kept, each once, in their order.
pub(super) fn distinct<T: Copy + PartialEq>(cuts: Vec<T>, keep: impl Fn(&T) -> bool) -> Vec<T> {
    let mut distinct = Vec::with_capacity(cuts.len());
    for cut in cuts {
        if keep(&cut) && !distinct.contains(&cut) {
            distinct.push(cut);
        }
    }
    distinct
}
