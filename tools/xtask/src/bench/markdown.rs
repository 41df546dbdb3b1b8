//! A document as Markdown.

use nvfp4_gemv_documents::document::Document;

use super::summary::{SUSTAINED, crossing_table, dispatch, facts, sustained, times};
use super::view::{cases, kinds};

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
    let repeated = sustained(document);
    if !repeated.is_empty() {
        let table = repeated.markdown();
        text.push_str(&format!("## Sustained\n\n{SUSTAINED}\n\n{table}\n"));
    }
    for kind in kinds(document) {
        text.push_str(&format!(
            "## {}\n\nTime, share of the ceiling, kernel; * is what the library picks.{}\n\n{}\n",
            kind.title(),
            match cases(document, &kind)
                .iter()
                .any(|case| case.cublas.is_some())
            {
                true => " With an x: how many times faster than cuBLAS with f16 weights.",
                false => "",
            },
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
        assert!(
            !text.contains("## Sustained") && !text.contains("cuBLAS"),
            "{text}"
        );
    }

    #[test]
    fn what_only_some_documents_have_is_in_it() {
        let text = super::render(&testing::vectors());
        for part in [
            "## Sustained",
            "| 0.020 |",
            "times faster than cuBLAS",
            "2.21x",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
