//! A table, as Markdown and as HTML.

use super::svg::escape;

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(self.header.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.header) + &rule + &rows
    }

    pub(crate) fn html(&self) -> String {
        let line = |tag: &str, cells: &[String]| {
            let cells = cells
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.rows.iter().map(|row| line("td", row)).collect();
        format!(
            "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
            line("th", &self.header)
        )
    }
}
