//! A document as Markdown.

use super::document::Document;
use super::summary::{crossing_table, dispatch, facts, times};
use super::view::kinds;

pub(super) fn render(document: &Document) -> String {
    let mut text = format!("# nvfp4-gemv on {}\n\n", document.device.name);
    for fact in facts(document) {
        text.push_str(&format!("{fact}\n\n"));
    }
    let (sentence, bad) = dispatch(document);
    text.push_str(&format!("## The dispatch's choices\n\n{sentence}\n\n"));
    if !bad.is_empty() {
        text.push_str(&format!("{}\n", bad.markdown()));
    }
    let crossings = crossing_table(document);
    if !crossings.is_empty() {
        text.push_str(&format!(
            "## Where paths cross\n\n{}\n",
            crossings.markdown()
        ));
    }
    for kind in kinds(document) {
        text.push_str(&format!(
            "## {}\n\nTime and share of the ceiling; * is what the library picks.\n\n{}\n",
            kind.title(),
            times(document, &kind).markdown()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::testing;

    #[test]
    fn everything_is_in_it() {
        let text = super::render(&testing::document());
        for part in [
            "# nvfp4-gemv on Test GPU <1>",
            "0123456789abcdef",
            "## Where paths cross",
            "## NVFP4 vectors, 128x4 scales",
            "## bf16 vectors, 128x4 scales",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
